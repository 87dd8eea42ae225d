//! `/metrics` and `/healthz`.

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
    pub metrics: Arc<Mutex<Metrics>>,
    /// When the agent last looked at the node.
    pub looked: Arc<Mutex<Instant>>,
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

    fn answer(&self, path: &str) -> (StatusCode, String) {
        match path {
            "/metrics" => (StatusCode::OK, self.with(|metrics| metrics.text())),
            "/healthz" => match self.looked.lock().unwrap_or_else(PoisonError::into_inner).elapsed() {
                silent if silent > SILENT => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("nothing was looked at for {} s\n", silent.as_secs()),
                ),
                _ => (StatusCode::OK, "ok\n".to_owned()),
            },
            _ => (StatusCode::NOT_FOUND, "there are /metrics and /healthz\n".to_owned()),
        }
    }
}

/// Binds the address, and serves until the process ends.
pub async fn serve(address: SocketAddr, shared: Shared) -> Result<()> {
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("cannot serve metrics at {address}"))?;
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
                    let (status, text) = shared.answer(request.uri().path());
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
