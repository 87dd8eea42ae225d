//! An API server as far as Multus asks one: it reads, lists and watches pods and networks, writes
//! the status of a pod, and sends events.

use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::objects::{reply, request};

/// Key of the annotation in which Multus reports.
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

const NETWORKS: &str = "/network-attachment-definitions";

/// The server. Its threads end with the process.
pub struct Api {
    /// `http://127.0.0.1:PORT`
    pub url: String,
    objects: Objects,
}

/// Path below /api/v1 or /apis/GROUP/VERSION -> object.
type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

impl Api {
    /// Starts one without objects.
    pub fn start() -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let objects = Objects::default();
        let served = objects.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let objects = served.clone();
                thread::spawn(move || serve(stream, &objects));
            }
        });
        Api { url, objects }
    }

    /// Creates or replaces an object, in the namespace `default` unless it names another.
    pub fn apply(&self, object: &Value) {
        let mut object = object.clone();
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.entry("namespace").or_insert(json!("default"));
        self.lock().insert(path_of(&object), object);
    }

    /// Deletes it.
    pub fn delete(&self, object: &Value) {
        let mut object = object.clone();
        object["metadata"]["namespace"] = json!("default");
        self.lock().remove(&path_of(&object)).unwrap();
    }

    /// Multus' report about a pod.
    pub fn network_status(&self, pod: &str) -> Vec<Value> {
        let pod = self.lock()[&format!("default/pods/{pod}")].clone();
        serde_json::from_str(
            pod["metadata"]["annotations"][STATUS]
                .as_str()
                .unwrap_or("[]"),
        )
        .unwrap()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn path_of(object: &Value) -> String {
    let kind = match object["kind"].as_str().unwrap() {
        "Pod" => "pods",
        "NetworkAttachmentDefinition" => "network-attachment-definitions",
        kind => panic!("{kind} is not served"),
    };
    let text = |key: &str| object["metadata"][key].as_str().unwrap();
    format!("{}/{kind}/{}", text("namespace"), text("name"))
}

/// Answers the requests of a connection until its other end closes it.
fn serve(mut stream: TcpStream, objects: &Objects) -> Option<()> {
    // A small answer would wait 40 ms for the acknowledgement of the one before it.
    stream.set_nodelay(true).ok()?;
    let mut requests = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (method, path, body) = request(&mut requests)?;
        if path.contains("watch=true") || path.contains("watch=1") {
            return watch(stream, &path, objects);
        }
        let (code, answer) = answer(&method, &path, &body, &mut objects.lock().unwrap());
        reply(&mut stream, code, &answer)?;
    }
}

/// Tells each change of a kind until the other end is gone: which kind is what the path ends with.
fn watch(mut stream: TcpStream, path: &str, objects: &Objects) -> Option<()> {
    if path.contains("sendInitialEvents=true") {
        // Then the client lists first.
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422});
        return reply(&mut stream, "422 Unprocessable Entity", &status);
    }
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).ok()?;
    let mut told = BTreeMap::new();
    loop {
        let now = of_kind(path, &objects.lock().unwrap());
        let changed = now
            .iter()
            .filter(|(key, object)| told.get(*key) != Some(*object));
        let mut events: Vec<_> = changed
            .map(|(key, object)| json!({"type": if told.contains_key(key) { "MODIFIED" } else { "ADDED" }, "object": object}))
            .collect();
        let gone = told.iter().filter(|(key, _)| !now.contains_key(*key));
        events.extend(
            gone.map(|(_, object): (_, &Value)| json!({"type": "DELETED", "object": object})),
        );
        for event in events {
            let line = format!("{event}\n");
            stream
                .write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
                .ok()?;
        }
        told = now;
        thread::sleep(Duration::from_millis(10));
    }
}

/// The objects of the kind with which a path ends, in all namespaces.
fn of_kind(path: &str, objects: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let kind = path
        .split('?')
        .next()
        .unwrap_or_default()
        .rsplit('/')
        .next()
        .unwrap_or_default();
    let is_of_kind = |key: &str| key.split('/').nth(1) == Some(kind);
    objects
        .iter()
        .filter(|(key, _)| is_of_kind(key))
        .map(|(key, object)| (key.clone(), object.clone()))
        .collect()
}

fn answer(
    method: &str,
    path: &str,
    body: &[u8],
    objects: &mut BTreeMap<String, Value>,
) -> (&'static str, Value) {
    let path = path.split('?').next().unwrap_or_default();
    let kinds = [
        ("/pods", "Pod", "v1"),
        (
            NETWORKS,
            "NetworkAttachmentDefinition",
            "k8s.cni.cncf.io/v1",
        ),
    ];
    for (end, kind, version) in kinds {
        if method == "GET" && path.ends_with(end) {
            let items: Vec<_> = of_kind(path, objects).into_values().collect();
            let list = json!({"kind": format!("{kind}List"), "apiVersion": version, "metadata": {"resourceVersion": "1"},
                "items": items});
            return ("200 OK", list);
        }
    }
    let name = path.split_once("/namespaces/").map_or("", |(_, name)| name);
    if method == "POST" && name.ends_with("/events") {
        return (
            "201 Created",
            json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "event"}}),
        );
    }
    let (name, part) = name
        .strip_suffix("/status")
        .map_or((name, ""), |name| (name, "status"));
    let Some(object) = objects.get_mut(name) else {
        let message = format!("{name:?} not found");
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
            "code": 404, "message": message});
        return ("404 Not Found", status);
    };
    if method == "PUT" && part == "status" {
        let Some(status) = annotation(body) else {
            return (
                "400 Bad Request",
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400}),
            );
        };
        object["metadata"]["annotations"][STATUS] = json!(status);
    }
    ("200 OK", object.clone())
}

/// The annotation of a pod that was sent as JSON, or in protocol buffers: there a string follows
/// its tag and its length.
fn annotation(body: &[u8]) -> Option<String> {
    if let Ok(pod) = serde_json::from_slice::<Value>(body) {
        return pod["metadata"]["annotations"][STATUS]
            .as_str()
            .map(str::to_owned);
    }
    let at = body
        .windows(STATUS.len())
        .position(|window| window == STATUS.as_bytes())?;
    let mut rest = body[at + STATUS.len()..].strip_prefix(b"\x12")?;
    let mut length = 0;
    for shift in (0..28).step_by(7) {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    String::from_utf8(rest.get(..length)?.to_vec()).ok()
}
