//! The Kubernetes API: the connection, the limits of a request, and what an error means.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;
use kube::{Client, Config};

/// The agent's name in Events and as field manager.
pub const NAME: &str = "rail-agent";
/// A request that takes longer has failed. A watch has no such limit.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Silence after which a connection is dead. The API server ends a watch after 290 s.
const WATCH_TIMEOUT: Duration = Duration::from_secs(330);

/// Connects to the API server that KUBECONFIG or the pod's service account names. Nothing is sent
/// yet.
pub async fn client() -> Result<Client> {
    let config = Config::infer()
        .await
        .context("this pod has no service account, and KUBECONFIG names no file")?;
    connect(config, WATCH_TIMEOUT)
}

/// A list, and the start of a watch, have no limit of their own: an API server that takes the
/// connection and says nothing would be waited for as long as the agent runs.
pub fn connect(mut config: Config, silence: Duration) -> Result<Client> {
    config.read_timeout = Some(silence);
    Client::try_from(config).context("the API server's address or certificate is wrong")
}

/// Waits for a request.
pub async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(explained),
        Err(_) => bail!(
            "the API server did not answer within {} s",
            REQUEST_TIMEOUT.as_secs()
        ),
    }
}

/// The error with all of its causes, which kube's own text leaves out.
pub fn explained(error: impl std::error::Error) -> anyhow::Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    let hint = if text.contains("certificate") || text.contains("UnknownIssuer") {
        " (the certificate of the API server is not that of the service account's ca.crt, or of KUBECONFIG)"
    } else if text.contains("403") || text.contains("orbidden") {
        " (apply the ClusterRole and Role of deploy/)"
    } else {
        ""
    };
    anyhow::anyhow!("{text}{hint}")
}

/// The UID of the namespace kube-system, which identifies a cluster.
pub async fn cluster_uid(client: &Client) -> Result<String> {
    let namespace = within(Api::<Namespace>::all(client.clone()).get("kube-system")).await?;
    namespace
        .metadata
        .uid
        .context("the namespace kube-system has no UID")
}
