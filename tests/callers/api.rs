//! An API server as far as Multus asks one: it reads a pod and networks, writes the pod's status, and sends events.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::{Value, json};

/// Key of the annotation in which Multus reports.
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

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

    /// What Multus reported of a pod.
    pub fn network_status(&self, pod: &str) -> Vec<Value> {
        let pod = self.lock()[&format!("default/pods/{pod}")].clone();
        serde_json::from_str(pod["metadata"]["annotations"][STATUS].as_str().unwrap_or("[]")).unwrap()
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
fn serve(stream: TcpStream, objects: &Objects) -> Option<()> {
    // A small answer would wait 40 ms for the acknowledgement of the one before it.
    stream.set_nodelay(true).ok()?;
    let mut requests = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        requests.read_line(&mut line).ok().filter(|length| *length > 0)?;
        let mut words = line.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut length = 0;
        loop {
            let mut header = String::new();
            requests.read_line(&mut header).ok().filter(|length| *length > 0)?;
            let Some((name, value)) = header.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        requests.read_exact(&mut body).ok()?;
        let (code, answer) = answer(&method, &path, &body, &mut objects.lock().unwrap());
        let answer = answer.to_string();
        let head = format!(
            "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        stream.write_all(format!("{head}{answer}").as_bytes()).ok()?;
    }
}

fn answer(
    method: &str,
    path: &str,
    body: &[u8],
    objects: &mut BTreeMap<String, Value>,
) -> (&'static str, Value) {
    let path = path.split('?').next().unwrap_or_default();
    let name = path.split_once("/namespaces/").map_or("", |(_, name)| name);
    if method == "POST" && name.ends_with("/events") {
        return ("201 Created", json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "event"}}));
    }
    let (name, part) = name.strip_suffix("/status").map_or((name, ""), |name| (name, "status"));
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

/// The annotation of a pod that was sent as JSON, or in protocol buffers: there a string follows its tag and its length.
fn annotation(body: &[u8]) -> Option<String> {
    if let Ok(pod) = serde_json::from_slice::<Value>(body) {
        return pod["metadata"]["annotations"][STATUS].as_str().map(str::to_owned);
    }
    let at = body.windows(STATUS.len()).position(|window| window == STATUS.as_bytes())?;
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
