//! `/metrics`. Whoever connects and is slow costs nothing: the oldest connection ends where there
//! are too many.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::metrics::Metrics;
use crate::text::{error_text, log};

/// The most connections at a time, and the longest one: a scrape takes milliseconds.
const CONNECTIONS: usize = 64;
const LONGEST: Duration = Duration::from_secs(10);
/// The most bytes of a request.
const REQUEST: usize = 8 << 10;
/// Interval of the tries to bind an address that another program has.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The metrics, which tasks share.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Metrics>>);

impl Shared {
    /// Changes the metrics.
    pub fn with<T>(&self, change: impl FnOnce(&mut Metrics) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The clients that get an answer.
#[derive(Clone, Debug)]
enum Access {
    /// Every process of this node.
    Loopback,
    /// Clients with the token, by TLS. The files are a mounted Secret, which may be renewed at any
    /// time.
    Secret(PathBuf),
}

/// The present content of a Secret.
struct Secret {
    tls: TlsAcceptor,
    token: String,
}

impl Secret {
    fn read(dir: &Path) -> Result<Secret> {
        let shown = |name: &str| format!("cannot read {}", dir.join(name).display());
        let chain = CertificateDer::pem_file_iter(dir.join("tls.crt")).and_then(Iterator::collect);
        let chain: Vec<_> = chain.with_context(|| shown("tls.crt"))?;
        let key =
            PrivateKeyDer::from_pem_file(dir.join("tls.key")).with_context(|| shown("tls.key"))?;
        let token = std::fs::read_to_string(dir.join("token")).with_context(|| shown("token"))?;
        if token.trim().len() < 16 {
            bail!(
                "{} has fewer than 16 characters",
                dir.join("token").display()
            );
        }
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .with_context(|| format!("tls.crt and tls.key in {} do not match", dir.display()))?;
        Ok(Secret {
            tls: TlsAcceptor::from(Arc::new(config)),
            token: format!("Bearer {}", token.trim()),
        })
    }
}

/// Serves at the address until the process ends, and retries while the address cannot be bound. Fails
/// if more than the processes of this node could read the metrics without a secret.
pub fn serve(address: SocketAddr, secret: Option<&Path>, shared: Shared) -> Result<()> {
    let access = match secret {
        Some(dir) => {
            Secret::read(dir)?;
            Access::Secret(dir.to_owned())
        }
        None if address.ip().is_loopback() => Access::Loopback,
        None => bail!(
            "--listen {address} would show the pods of this node to anyone: add --metrics-secret with the directory \
             of a Secret that has tls.crt, tls.key and token"
        ),
    };
    tokio::spawn(async move {
        let listener = bind(address).await;
        accept(listener, &access, &shared).await;
    });
    Ok(())
}

/// Binds the address as soon as that is possible, and logs the first failure.
async fn bind(address: SocketAddr) -> TcpListener {
    let mut is_logged = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) if !is_logged => log(
                "warn",
                &format!("cannot listen at {address}, so there are no metrics: {error}"),
            ),
            Err(_) => (),
        }
        is_logged = true;
        tokio::time::sleep(BIND_RETRY_INTERVAL).await;
    }
}

async fn accept(listener: TcpListener, access: &Access, shared: &Shared) {
    let mut open = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No file descriptor is free, for example.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.retain(|one: &tokio::task::AbortHandle| !one.is_finished());
        if open.len() >= CONNECTIONS {
            open.pop_front().inspect(tokio::task::AbortHandle::abort);
        }
        let connection = connection(stream, access.clone(), shared.clone());
        open.push_back(tokio::spawn(tokio::time::timeout(LONGEST, connection)).abort_handle());
    }
}

async fn connection(stream: TcpStream, access: Access, shared: Shared) {
    let dir = match &access {
        Access::Loopback => return http(stream, None, &shared).await,
        Access::Secret(dir) => dir,
    };
    match Secret::read(dir) {
        Ok(secret) => {
            if let Ok(stream) = secret.tls.accept(stream).await {
                http(stream, Some(&secret.token), &shared).await;
            }
        }
        Err(error) => log("warn", &error_text(&error)),
    }
}

async fn http(stream: impl AsyncRead + AsyncWrite + Unpin, token: Option<&str>, shared: &Shared) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(&request, token, shared);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut server = http1::Builder::new();
    // A client has to connect again after its answer.
    server.keep_alive(false).max_buf_size(REQUEST);
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

fn answer(
    request: &Request<Incoming>,
    token: Option<&str>,
    shared: &Shared,
) -> Response<Full<Bytes>> {
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    let is_known = token.is_none_or(|token| bool::from(token.as_bytes().ct_eq(given)));
    let (status, text) = match request.uri().path() {
        _ if !is_known => (
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong\n".to_owned(),
        ),
        "/metrics" => (StatusCode::OK, shared.with(|metrics| metrics.text())),
        _ => (StatusCode::NOT_FOUND, "use /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; version=0.0.4"),
    );
    if !is_known {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
