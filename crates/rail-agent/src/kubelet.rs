//! The kubelet's device plugin API, v1beta1: its messages, and gRPC as far as that API needs it,
//! between two processes of one node.
//! <https://github.com/kubernetes/kubelet/blob/master/pkg/apis/deviceplugin/v1beta1/api.proto> has
//! the numbers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use futures::stream::{self, BoxStream, StreamExt as _};
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, client};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use tokio::sync::watch::Receiver;

/// The usual root directory of the kubelet.
pub const ROOT_DIR: &str = "/var/lib/kubelet";
/// The directory of the kubelet's socket and of those of plugins, below the root directory.
pub const PLUGINS: &str = "device-plugins";
/// The kubelet's socket.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
const VERSION: &str = "v1beta1";
/// [`Device::health`] of a device for new pods.
pub const HEALTHY: &str = "Healthy";
/// [`Device::health`] of a device that new pods do not get.
pub const UNHEALTHY: &str = "Unhealthy";
/// The largest request: gRPC's own limit.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";
/// Codes of gRPC.
const OK: u16 = 0;
const INVALID_ARGUMENT: u16 = 3;
const UNIMPLEMENTED: u16 = 12;

#[derive(Clone, PartialEq, Message)]
struct Options {
    #[prost(bool, tag = "2")]
    has_preferred_allocation: bool,
}

const OPTIONS: Options = Options {
    has_preferred_allocation: true,
};

#[derive(Clone, PartialEq, Message)]
struct Registration {
    #[prost(string, tag = "1")]
    version: String,
    /// The name of the plugin's socket.
    #[prost(string, tag = "2")]
    endpoint: String,
    #[prost(string, tag = "3")]
    resource: String,
    #[prost(message, optional, tag = "4")]
    options: Option<Options>,
}

/// The devices of a resource.
#[derive(Clone, PartialEq, Message)]
pub struct Devices {
    /// All devices, healthy or not.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    /// Its address on the bus, by which the kubelet and Multus name it.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
    /// Its NUMA node, if known.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

/// The place of a device in the machine.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Topology {
    /// The NUMA nodes.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NumaNode {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Choices {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Choice>,
}

/// The devices that a container might get.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Choice {
    /// Free devices.
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    /// Free devices that the container gets in any case.
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    /// Number of devices that the container gets.
    #[prost(int32, tag = "3")]
    pub size: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Ids {
    #[prost(string, repeated, tag = "1")]
    ids: Vec<String>,
}

/// Variables and files that a container gets with its devices.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Given {
    /// Environment variables.
    #[prost(btree_map = "string, string", tag = "1")]
    pub variables: BTreeMap<String, String>,
    /// Files in /dev.
    #[prost(message, repeated, tag = "3")]
    pub files: Vec<DeviceFile>,
}

/// A file in /dev for a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceFile {
    /// Its path in the container.
    #[prost(string, tag = "1")]
    pub in_container: String,
    /// Its path on the host.
    #[prost(string, tag = "2")]
    pub on_host: String,
    /// Some of `r`, `w` and `m`.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[derive(Clone, PartialEq, Message)]
struct AllIds {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Ids>,
}

#[derive(Clone, PartialEq, Message)]
struct AllGiven {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Given>,
}

/// A request of the kubelet; lists have an entry per container.
#[derive(Debug)]
pub enum Asked {
    /// The devices, now and whenever they change.
    Watch,
    /// The best of the free devices.
    Prefer(Vec<Choice>),
    /// Variables and files for these devices.
    Allocate(Vec<Vec<String>>),
}

/// The answer, in the order of the request.
#[derive(Debug)]
pub enum Answer {
    /// To [`Asked::Watch`].
    Devices(Receiver<Devices>),
    /// To [`Asked::Prefer`].
    Preferred(Vec<Vec<String>>),
    /// To [`Asked::Allocate`].
    Given(Vec<Given>),
    /// To any request, with the reason.
    Refused(String),
}

/// Status and message of a gRPC error.
type Refusal = (u16, String);

type Frames = BoxStream<'static, Result<Frame<Bytes>, Infallible>>;
type Body = StreamBody<Frames>;

/// An uncompressed message after its length, as gRPC frames it.
fn framed(message: &impl Message) -> Bytes {
    let length = u32::try_from(message.encoded_len()).unwrap_or(u32::MAX);
    let mut bytes = vec![0];
    bytes.extend(length.to_be_bytes());
    bytes.extend(message.encode_to_vec());
    bytes.into()
}

/// The message in a body with exactly one.
fn unframed<M: Message + Default>(body: &[u8]) -> Result<M> {
    match body.split_first_chunk::<5>() {
        Some(([0, length @ ..], message))
            if u32::from_be_bytes(*length) as usize == message.len() =>
        {
            Ok(M::decode(message)?)
        }
        _ => bail!("it is not one uncompressed message"),
    }
}

/// Registers a resource with the kubelet at `socket`. `endpoint` is the name of the plugin's socket
/// in the same directory.
pub async fn register(socket: &Path, endpoint: &str, resource: &str) -> Result<()> {
    let stream = UnixStream::connect(socket)
        .await
        .context("cannot connect to the kubelet")?;
    let (mut kubelet, connection) =
        client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let _connection = AbortOnDrop(tokio::spawn(connection).abort_handle());
    let registration = Registration {
        version: VERSION.to_owned(),
        endpoint: endpoint.to_owned(),
        resource: resource.to_owned(),
        options: Some(OPTIONS),
    };
    let request = Request::post("http://localhost/v1beta1.Registration/Register")
        .header(CONTENT_TYPE, GRPC)
        .header(TE, "trailers")
        .body(Full::new(framed(&registration)))?;
    let (head, body) = kubelet.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_MESSAGE_BYTES)
        .collect()
        .await
        .map_err(|error| anyhow::anyhow!(error))?;
    // An error without a body has its status in the headers.
    let trailers = body
        .trailers()
        .filter(|trailers| trailers.contains_key(STATUS))
        .unwrap_or(&head.headers);
    let text = |key| {
        trailers
            .get(key)
            .and_then(|value: &HeaderValue| value.to_str().ok())
            .unwrap_or("-")
    };
    if text(STATUS) != "0" {
        bail!(
            "the kubelet refuses the resource {resource}: {} ({})",
            text(MESSAGE),
            text(STATUS)
        );
    }
    Ok(())
}

/// Aborts its task when dropped.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Answers the requests of a connection until it ends.
pub async fn serve<F>(stream: UnixStream, answer: impl Fn(Asked) -> F + Clone + Send + 'static)
where
    F: Future<Output = Answer> + Send,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer.clone();
        async move { Ok::<_, Infallible>(respond(request, answer).await) }
    });
    let _ = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond<F>(request: Request<Incoming>, answer: impl Fn(Asked) -> F) -> Response<Body>
where
    F: Future<Output = Answer>,
{
    let asked = match parse(request).await {
        Ok(Some(asked)) => asked,
        Ok(None) => return unary(&OPTIONS),
        Err(refusal) => return refused(refusal),
    };
    match answer(asked).await {
        Answer::Devices(devices) => response(changes(devices)),
        Answer::Preferred(all) => unary(&AllIds {
            containers: all.into_iter().map(|ids| Ids { ids }).collect(),
        }),
        Answer::Given(containers) => unary(&AllGiven { containers }),
        Answer::Refused(why) => refused((INVALID_ARGUMENT, why)),
    }
}

/// Parses a request; `None` if it is for the plugin's options.
async fn parse(request: Request<Incoming>) -> Result<Option<Asked>, Refusal> {
    let malformed = |why: String| {
        (
            INVALID_ARGUMENT,
            format!("the request cannot be read: {why}"),
        )
    };
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_MESSAGE_BYTES)
        .collect()
        .await
        .map_err(|error| malformed(error.to_string()))?;
    let body = body.to_bytes();
    match head.uri.path().strip_prefix("/v1beta1.DevicePlugin/") {
        Some("GetDevicePluginOptions") => Ok(None),
        Some("ListAndWatch") => Ok(Some(Asked::Watch)),
        Some("GetPreferredAllocation") => {
            let choices: Choices = unframed(&body).map_err(|error| malformed(error.to_string()))?;
            Ok(Some(Asked::Prefer(choices.containers)))
        }
        Some("Allocate") => {
            let all: AllIds = unframed(&body).map_err(|error| malformed(error.to_string()))?;
            let ids_by_container = all.containers.into_iter().map(|container| container.ids);
            Ok(Some(Asked::Allocate(ids_by_container.collect())))
        }
        _ => Err((
            UNIMPLEMENTED,
            format!("{} is not known here", head.uri.path()),
        )),
    }
}

fn response(parts: Frames) -> Response<Body> {
    let mut response = Response::new(StreamBody::new(parts));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// An answer with one message.
fn unary(message: &impl Message) -> Response<Body> {
    let trailers = HeaderMap::from_iter([(HeaderName::from_static(STATUS), HeaderValue::from(OK))]);
    response(
        stream::iter([
            Ok(Frame::data(framed(message))),
            Ok(Frame::trailers(trailers)),
        ])
        .boxed(),
    )
}

/// An answer with a gRPC status. The message has only printable ASCII without `%`: gRPC would want
/// every other byte as `%XX`.
fn refused((code, message): Refusal) -> Response<Body> {
    let mut plain = String::new();
    for char in message.chars() {
        let is_plain = char != '%' && (' '..='~').contains(&char);
        plain.push(if is_plain { char } else { '?' });
    }
    let mut response = response(stream::empty().boxed());
    let headers = response.headers_mut();
    headers.insert(STATUS, HeaderValue::from(code));
    if let Ok(message) = HeaderValue::from_str(&plain) {
        headers.insert(HeaderName::from_static(MESSAGE), message);
    }
    response
}

/// A message with all devices at once, and one after each change.
fn changes(devices: Receiver<Devices>) -> Frames {
    let next = |(mut devices, is_first): (Receiver<Devices>, bool)| async move {
        if !is_first {
            devices.changed().await.ok()?;
        }
        let frame = Frame::data(framed(&*devices.borrow_and_update()));
        Some((Ok(frame), (devices, false)))
    };
    stream::unfold((devices, true), next).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;
    use tokio::sync::watch;

    type Kubelet = client::conn::http2::SendRequest<Full<Bytes>>;

    async fn call(kubelet: &mut Kubelet, verb: &str, body: Bytes) -> Response<Incoming> {
        let uri = format!("http://localhost/v1beta1.DevicePlugin/{verb}");
        kubelet
            .send_request(Request::post(uri).body(Full::new(body)).unwrap())
            .await
            .unwrap()
    }

    async fn ask<M: Message + Default>(
        kubelet: &mut Kubelet,
        verb: &str,
        message: &impl Message,
    ) -> M {
        let body = call(kubelet, verb, framed(message))
            .await
            .into_body()
            .collect()
            .await
            .unwrap();
        assert_eq!(body.trailers().unwrap()[STATUS], "0");
        unframed(&body.to_bytes()).unwrap()
    }

    #[test]
    fn the_kubelet_is_answered_and_told_of_changes_on_one_connection() {
        crate::runtime::runtime().unwrap().block_on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let device = |id: &str| Device {
                id: id.to_owned(),
                health: HEALTHY.to_owned(),
                topology: Some(Topology {
                    nodes: vec![NumaNode { id: 1 }],
                }),
            };
            let (sender, devices) = watch::channel(Devices {
                devices: vec![device("a")],
            });
            tokio::spawn(serve(ours, move |asked| {
                let devices = devices.clone();
                async move {
                    match asked {
                        Asked::Watch => Answer::Devices(devices),
                        Asked::Prefer(all) => {
                            Answer::Preferred(all.into_iter().map(|one| one.must_include).collect())
                        }
                        Asked::Allocate(all) => {
                            Answer::Refused(format!("no {} \u{e4} 1%", all[0][0]))
                        }
                    }
                }
            }));
            let (mut kubelet, connection) =
                client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(theirs))
                    .await
                    .unwrap();
            tokio::spawn(connection);
            let options: Options = ask(&mut kubelet, "GetDevicePluginOptions", &()).await;
            assert!(options.has_preferred_allocation);
            let mut watch = call(&mut kubelet, "ListAndWatch", framed(&()))
                .await
                .into_body();
            for id in ["a", "b"] {
                sender.send_replace(Devices {
                    devices: vec![device(id)],
                });
                let frame = watch.frame().await.unwrap().unwrap().into_data().unwrap();
                assert_eq!(unframed::<Devices>(&frame).unwrap().devices, [device(id)]);
            }
            let must = Ids {
                ids: vec!["a".to_owned()],
            };
            let choice = Choice {
                must_include: must.ids.clone(),
                ..Choice::default()
            };
            let chosen: AllIds = ask(
                &mut kubelet,
                "GetPreferredAllocation",
                &Choices {
                    containers: vec![choice],
                },
            )
            .await;
            assert_eq!(chosen.containers, std::slice::from_ref(&must));
            let refused = call(
                &mut kubelet,
                "Allocate",
                framed(&AllIds {
                    containers: vec![must],
                }),
            )
            .await;
            assert_eq!(
                (&refused.headers()[STATUS], &refused.headers()[MESSAGE]),
                (&"3".parse().unwrap(), &"no a ? 1?".parse().unwrap())
            );
            let unknown = call(&mut kubelet, "Else", framed(&())).await;
            assert_eq!(unknown.headers()[STATUS], "12");
            let cut = call(
                &mut kubelet,
                "Allocate",
                Bytes::from_static(&[0, 0, 0, 0, 9, 1]),
            )
            .await;
            assert_eq!(cut.headers()[STATUS], "3");
        });
    }

    #[test]
    fn a_resource_is_registered_or_the_kubelet_says_why_not() {
        crate::runtime::runtime().unwrap().block_on(async {
            let temp = tempfile::tempdir().unwrap();
            let socket = temp.path().join(KUBELET_SOCKET);
            assert!(
                register(&socket, "it.sock", "a.b/c").await.is_err(),
                "there is no kubelet"
            );
            let listener = UnixListener::bind(&socket).unwrap();
            tokio::spawn(async move {
                let service = service_fn(|request: Request<Incoming>| async {
                    assert_eq!(request.uri().path(), "/v1beta1.Registration/Register");
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let asked: Registration = unframed(&body).unwrap();
                    assert_eq!((&*asked.version, &*asked.endpoint), ("v1beta1", "it.sock"));
                    assert!(asked.options.unwrap().has_preferred_allocation);
                    Ok::<_, Infallible>(match asked.resource.as_str() {
                        "a.b/c" => unary(&()),
                        other => refused((INVALID_ARGUMENT, format!("{other} is taken"))),
                    })
                });
                while let Ok((stream, _)) = listener.accept().await {
                    let server = http2::Builder::new(TokioExecutor::new());
                    tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
                }
            });
            register(&socket, "it.sock", "a.b/c").await.unwrap();
            let told = register(&socket, "it.sock", "a.b/d")
                .await
                .unwrap_err()
                .to_string();
            assert!(
                told.contains("a.b/d is taken") && told.contains("(3)"),
                "{told}"
            );
        });
    }
}
