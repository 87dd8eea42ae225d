//! An API server as far as the agent asks one: objects by their path, lists and watches of them,
//! merge patches, and Events. It can go away and come back at the same address.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// The server. Its threads end with the process.
#[derive(Clone)]
pub struct Api {
    pub address: SocketAddr,
    inner: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// By path, such as `/api/v1/nodes/worker-gpu-0`.
    objects: BTreeMap<String, Value>,
    /// The events of objects, with the version: the position.
    log: Vec<(String, &'static str, Value)>,
    events: Vec<Value>,
    is_away: bool,
    /// Parts of the targets of requests that get an error, each once, and the error.
    refused: Vec<(String, u16)>,
    forgotten: Option<&'static str>,
    /// A part of changes that are refused.
    forbidden: Option<&'static str>,
    /// The requests, as `VERB PATH`.
    requests: Vec<String>,
    /// The content of lists from memory, where that is older than the objects.
    old: BTreeMap<String, Value>,
    /// Questions about one object that the memory does not answer.
    quorum_reads: Vec<String>,
}

impl Api {
    pub fn start() -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let api = Api {
            address,
            inner: Arc::default(),
        };
        api.put(
            "/api/v1/namespaces/kube-system",
            json!({"metadata": {"name": "kube-system", "uid": "cluster-1"}}),
        );
        let served = api.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let api = served.clone();
                thread::spawn(move || api.serve(stream));
            }
        });
        api
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates or replaces an object.
    pub fn put(&self, path: &str, object: Value) {
        let mut state = self.lock();
        state.put(path, object);
        self.inner.1.notify_all();
    }

    pub fn delete(&self, path: &str) {
        let mut state = self.lock();
        let object = state.objects.remove(path).unwrap();
        state.log.push((path.to_owned(), "DELETED", object));
        self.inner.1.notify_all();
    }

    pub fn get(&self, path: &str) -> Value {
        self.lock().objects.get(path).cloned().unwrap_or_default()
    }

    /// The Events with this reason.
    pub fn events(&self, reason: &str) -> Vec<Value> {
        self.lock()
            .events
            .iter()
            .filter(|event| event["reason"] == reason)
            .cloned()
            .collect()
    }

    /// From now on connections are closed without an answer, until it is back.
    pub fn go_away(&self, is_away: bool) {
        self.lock().is_away = is_away;
        self.inner.1.notify_all();
    }

    /// The next requests whose target has `part` get these errors.
    pub fn refuse(&self, part: &str, codes: &[u16]) {
        self.lock()
            .refused
            .extend(codes.iter().map(|code| (part.to_owned(), *code)));
    }

    /// From now on nothing more is refused.
    pub fn relent(&self) {
        self.lock().refused.clear();
    }

    /// From now on changes whose text has this part are refused.
    pub fn forbid(&self, part: &'static str) {
        self.lock().forbidden = Some(part);
    }

    pub fn left_to_refuse(&self) -> usize {
        self.lock().refused.len()
    }

    /// The requests so far, each once.
    pub fn requests(&self) -> Vec<String> {
        let mut all = self.lock().requests.clone();
        all.sort();
        all.dedup();
        all
    }

    /// Number of times that a request was made.
    pub fn count(&self, request: &str) -> usize {
        self.lock()
            .requests
            .iter()
            .filter(|one| *one == request)
            .count()
    }

    /// From now on the lists from memory have this object as it is now, and watches are silent
    /// about it.
    pub fn freeze(&self, path: &str) {
        let mut state = self.lock();
        let object = state.objects[path].clone();
        state.old.insert(path.to_owned(), object);
    }

    /// Number of requests for an object as it is stored now.
    pub fn quorum_reads(&self, path: &str) -> usize {
        self.lock()
            .quorum_reads
            .iter()
            .filter(|one| *one == path)
            .count()
    }

    /// From now on there is no such kind of objects.
    pub fn forget(&self, kind: &'static str) {
        self.lock().forgotten = Some(kind);
    }

    fn serve(&self, stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        loop {
            let mut first = String::new();
            if reader.read_line(&mut first).unwrap_or(0) == 0 || self.lock().is_away {
                return;
            }
            let mut length = 0;
            loop {
                let mut header = String::new();
                if reader.read_line(&mut header).unwrap_or(0) == 0 {
                    return;
                }
                if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if header.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let mut words = first.split(' ');
            let (verb, target) = (words.next().unwrap(), words.next().unwrap());
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            self.lock().requests.push(format!("{verb} {path}"));
            let error = {
                let mut state = self.lock();
                let one = state
                    .refused
                    .iter()
                    .position(|(part, _)| target.contains(part));
                one.map(|index| state.refused.remove(index).1)
            };
            if query.contains("watch=true") && error.is_none() {
                self.watch(&mut stream, path, query);
                return;
            }
            let (status, answer) = match error {
                Some(code) => (code, failure(code, "not now")),
                None => self.answer(verb, path, query, body),
            };
            let text = answer.to_string();
            let head = format!(
                "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                text.len()
            );
            if stream.write_all((head + &text).as_bytes()).is_err() {
                return;
            }
        }
    }

    fn answer(&self, verb: &str, path: &str, query: &str, body: Value) -> (u16, Value) {
        let mut state = self.lock();
        let missing = |path: &str| (404, not_found(path));
        if state.forgotten.is_some_and(|kind| path.contains(kind)) {
            return (404, json!("404 page not found"));
        }
        match verb {
            "GET" if is_list(path) => {
                let items: Vec<_> = state
                    .objects
                    .iter()
                    .filter(|(of, object)| is_in(of, path) && is_selected(object, query))
                    .map(|(of, object)| {
                        state
                            .old
                            .get(of)
                            .filter(|_| is_from_memory(query))
                            .unwrap_or(object)
                            .clone()
                    })
                    .collect();
                let is_known = !path.ends_with("/cidrpools") || state.objects.contains_key("crd");
                if !is_known {
                    return missing(path);
                }
                let mut metadata = json!({"resourceVersion": state.log.len().to_string()});
                let (items, next) = page(items, query);
                if let Some(next) = next {
                    metadata["continue"] = json!(next);
                }
                (
                    200,
                    json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}),
                )
            }
            "GET" => {
                if !is_from_memory(query) {
                    state.quorum_reads.push(path.to_owned());
                }
                state
                    .objects
                    .get(path)
                    .map_or_else(|| missing(path), |object| (200, object.clone()))
            }
            "POST" => {
                state.events.push(body.clone());
                (201, body)
            }
            "PATCH" if path.contains("/events/") => {
                state.events.push(body.clone());
                (200, body)
            }
            "PATCH"
                if state
                    .forbidden
                    .is_some_and(|part| body.to_string().contains(part)) =>
            {
                (403, failure(403, "forbidden by a policy"))
            }
            "PATCH" => {
                let of = path.trim_end_matches("/status");
                let Some(mut object) = state.objects.get(of).cloned() else {
                    return missing(path);
                };
                let wanted = &body["metadata"]["resourceVersion"];
                if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
                    return (409, failure(409, "the object has been modified"));
                }
                if path.ends_with("/status") {
                    merge_conditions(&mut object, &body);
                } else {
                    merge(&mut object, &body);
                }
                state.put(of, object);
                self.inner.1.notify_all();
                (200, state.objects[of].clone())
            }
            _ => missing(path),
        }
    }

    fn watch(&self, stream: &mut TcpStream, path: &str, query: &str) {
        let from = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("resourceVersion="))
            .unwrap_or("0");
        let mut next: usize = from.parse().unwrap();
        let head = "HTTP/1.1 200 x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
        loop {
            let mut state = self.lock();
            while state.log.len() == next && !state.is_away {
                state = self
                    .inner
                    .1
                    .wait_timeout(state, Duration::from_millis(200))
                    .unwrap()
                    .0;
            }
            if state.is_away {
                return;
            }
            let is_told = |news: &&(String, _, _)| !state.old.contains_key(&news.0);
            let news: Vec<_> = state.log[next..].iter().filter(is_told).cloned().collect();
            next = state.log.len();
            drop(state);
            for (of, kind, object) in news {
                if !is_in(&of, path) || !is_selected(&object, query) {
                    continue;
                }
                let line = format!("{}\n", json!({"type": kind, "object": object}));
                let chunk = format!("{:x}\r\n{line}\r\n", line.len());
                if stream.write_all(chunk.as_bytes()).is_err() {
                    return;
                }
            }
        }
    }
}

impl State {
    fn put(&mut self, path: &str, mut object: Value) {
        let kind = if self.objects.contains_key(path) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        object["metadata"]["resourceVersion"] = json!((self.log.len() + 1).to_string());
        self.log.push((path.to_owned(), kind, object.clone()));
        self.objects.insert(path.to_owned(), object);
    }
}

fn failure(code: u16, message: &str) -> Value {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => panic!("no reason for {code}"),
    };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": message})
}

fn not_found(path: &str) -> Value {
    let mut answer = failure(404, &format!("{path} not found"));
    answer["details"] = details(path);
    answer
}

/// Of an object that is missing: its kind and name. Of a kind that is missing there is nothing.
fn details(path: &str) -> Value {
    match path.rsplit('/').collect::<Vec<_>>()[..] {
        [name, kind, _, "namespaces", ..] if kind != "namespaces" => {
            json!({"name": name, "kind": kind})
        }
        _ => json!({}),
    }
}

fn is_from_memory(query: &str) -> bool {
    query.split('&').any(|pair| pair == "resourceVersion=0")
}

fn is_list(path: &str) -> bool {
    ["/configmaps", "/nodes", "/cidrpools", "/resourceclaims"]
        .iter()
        .any(|list| path.ends_with(list))
}

/// Whether an object is in a list: `/apis/G/V/namespaces/N/cidrpools/X` is in
/// `/apis/G/V/cidrpools`.
fn is_in(of: &str, list: &str) -> bool {
    let (group, kind) = list.rsplit_once('/').unwrap();
    of.starts_with(group) && of.rsplit('/').nth(1) == Some(kind)
}

/// A page of a list that is asked for with a limit has one object, whatever the limit: an API
/// server may give less.
fn page(items: Vec<Value>, query: &str) -> (Vec<Value>, Option<String>) {
    let of = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key));
    if of("limit=").is_none() || query.contains("resourceVersion=") {
        return (items, None);
    }
    let from: usize = of("continue=").map_or(0, |token| token.parse().unwrap());
    let next = (from + 1 < items.len()).then(|| (from + 1).to_string());
    (items.into_iter().skip(from).take(1).collect(), next)
}

fn is_selected(object: &Value, query: &str) -> bool {
    let name = query
        .split("metadata.name%3D")
        .nth(1)
        .map(|rest| rest.split('&').next().unwrap_or(rest));
    name.is_none_or(|name| object["metadata"]["name"] == name)
}

fn merge(object: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *object = change.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    let fields = object.as_object_mut().unwrap();
    for (key, value) in change {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// A strategic merge patch of the conditions, whose key is the type.
fn merge_conditions(object: &mut Value, change: &Value) {
    let mut all = object["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for one in change["status"]["conditions"].as_array().unwrap() {
        all.retain(|other| other["type"] != one["type"]);
        if one["$patch"] != "delete" {
            all.push(one.clone());
        }
    }
    object["status"]["conditions"] = json!(all);
}
