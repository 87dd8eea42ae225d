//! `/metrics`, and `/healthz` at an address of its own: whoever keeps all places of the one busy must not make the
//! kubelet end the agent.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::metrics::Metrics;

/// The most connections at a time, and the longest one: a scrape takes milliseconds.
const CONNECTIONS: usize = 16;
const LONGEST: Duration = Duration::from_secs(10);
/// The agent hangs if it has looked at nothing for so long: the longest program takes two minutes.
const SILENT: Duration = Duration::from_secs(600);

/// What is served.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The metrics.
    metrics: Arc<Mutex<Metrics>>,
    /// When the agent last looked at the node.
    looked: Arc<Mutex<Instant>>,
}

impl Shared {
    /// Nothing is known yet.
    pub fn new() -> Shared {
        Shared { metrics: Arc::default(), looked: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Changes the metrics.
    pub fn with<T>(&self, change: impl FnOnce(&mut Metrics) -> T) -> T {
        change(&mut self.metrics.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that the agent looked at the node.
    pub fn alive(&self) {
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// `/metrics`.
    pub fn metrics(&self, path: &str) -> (StatusCode, String) {
        match path {
            "/metrics" => (StatusCode::OK, self.with(|metrics| metrics.text())),
            _ => (StatusCode::NOT_FOUND, "there is /metrics\n".to_owned()),
        }
    }

    /// `/healthz`.
    pub fn health(&self, path: &str) -> (StatusCode, String) {
        let silent = self.looked.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        match path {
            "/healthz" if silent > SILENT => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("nothing was looked at for {} s\n", silent.as_secs()),
            ),
            "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
            _ => (StatusCode::NOT_FOUND, "there is /healthz\n".to_owned()),
        }
    }
}

/// What is answered about a path.
type Answer = fn(&Shared, &str) -> (StatusCode, String);

/// Binds the address, and serves until the process ends.
pub async fn serve(address: SocketAddr, shared: Shared, answer: Answer) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    tokio::spawn(async move {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                // No file descriptor is free, for example.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let shared = shared.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let (status, text) = answer(&shared, request.uri().path());
                    let mut response = Response::new(Full::new(Bytes::from(text)));
                    *response.status_mut() = status;
                    let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4");
                    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
                    async move { Ok::<_, Infallible>(response) }
                });
                let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                let _ = tokio::time::timeout(LONGEST, connection).await;
                drop(place);
            });
        }
    });
    Ok(())
}
