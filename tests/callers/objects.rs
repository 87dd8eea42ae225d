//! A double of an API server, as far as whereabouts asks one: it keeps what is created, and applies
//! JSON patches.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::{Value, json};

/// Path of an object -> the object.
pub type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

/// A status line, and the object below it.
type Answer = (&'static str, Value);

/// Answers every connection, and does not return.
pub fn serve(listener: &TcpListener, objects: &Objects) {
    for stream in listener.incoming().flatten() {
        let objects = objects.clone();
        thread::spawn(move || serve_one(stream, &objects));
    }
}

/// Answers the requests of a connection until its other end closes it.
fn serve_one(mut stream: TcpStream, objects: &Objects) -> Option<()> {
    // A small answer would wait 40 ms for the acknowledgement of the one before it.
    stream.set_nodelay(true).ok()?;
    let mut requests = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (method, path, body) = request(&mut requests)?;
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let path = path.split('?').next().unwrap_or_default();
        let mut objects = objects.lock().unwrap_or_else(PoisonError::into_inner);
        let (code, answer) = answer(&method, path, body, &mut objects);
        drop(objects);
        reply(&mut stream, code, &answer)?;
    }
}

/// Method, path and body of the next request; `None` when the other end has closed the connection.
pub fn request(requests: &mut impl BufRead) -> Option<(String, String, Vec<u8>)> {
    let mut line = String::new();
    requests
        .read_line(&mut line)
        .ok()
        .filter(|length| *length > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        requests
            .read_line(&mut header)
            .ok()
            .filter(|length| *length > 0)?;
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    requests.read_exact(&mut body).ok()?;
    Some((method, path, body))
}

/// Answers with a JSON object.
pub fn reply(stream: &mut TcpStream, code: &str, answer: &Value) -> Option<()> {
    let answer = answer.to_string();
    let length = answer.len();
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{answer}").as_bytes()).ok()
}

fn answer(
    method: &str,
    path: &str,
    mut body: Value,
    objects: &mut BTreeMap<String, Value>,
) -> Answer {
    match method {
        "POST" if body.is_object() => {
            if let Some((_, rest)) = path.split_once("/namespaces/") {
                body["metadata"]["namespace"] = json!(rest.split('/').next());
            }
            let path = format!(
                "{path}/{}",
                body["metadata"]["name"].as_str().unwrap_or_default()
            );
            if objects.contains_key(&path) {
                return failed("409 Conflict", "AlreadyExists", 409);
            }
            body["metadata"]["resourceVersion"] = json!("1");
            objects.insert(path, body.clone());
            ("201 Created", body)
        }
        // A name is behind the kind; without it all of a kind are asked for.
        "GET" if path.ends_with("/ippools") => {
            let items: Vec<_> = objects
                .iter()
                .filter(|(name, _)| name.starts_with(path))
                .map(|(_, each)| each)
                .collect();
            (
                "200 OK",
                json!({"kind": "IPPoolList", "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "items": items}),
            )
        }
        "DELETE" => match objects.remove(path) {
            Some(_) => (
                "200 OK",
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
            ),
            None => failed("404 Not Found", "NotFound", 404),
        },
        "GET" | "PUT" | "PATCH" => match objects.get_mut(path) {
            None => failed("404 Not Found", "NotFound", 404),
            Some(object) if method == "GET" => ("200 OK", object.clone()),
            Some(object) => changed(object, method, body),
        },
        _ => failed("400 Bad Request", "BadRequest", 400),
    }
}

fn failed(code: &'static str, reason: &str, number: u16) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": number});
    (code, status)
}

/// Replaces an object, if it is of the version that there is, or patches it.
fn changed(object: &mut Value, method: &str, body: Value) -> Answer {
    let version = object["metadata"]["resourceVersion"].clone();
    let mut new = if method == "PUT" {
        Some(body)
    } else {
        patched(object, &body)
    };
    let Some(new) = new.as_mut().filter(|new| new.is_object()) else {
        return failed("422 Unprocessable Entity", "Invalid", 422);
    };
    let meant = &new["metadata"]["resourceVersion"];
    if !meant.is_null() && *meant != version {
        return failed("409 Conflict", "Conflict", 409);
    }
    let before: u64 = version
        .as_str()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0);
    new["metadata"]["resourceVersion"] = json!((before + 1).to_string());
    *object = new.clone();
    ("200 OK", object.clone())
}

/// An object with a JSON patch applied; `None` if one of its tests fails.
fn patched(object: &Value, operations: &Value) -> Option<Value> {
    let mut new = object.clone();
    for operation in operations.as_array()? {
        let path = operation["path"].as_str()?;
        let (parent, key) = path.rsplit_once('/')?;
        match operation["op"].as_str()? {
            "test" if *new.pointer(path).unwrap_or(&Value::Null) != operation["value"] => {
                return None;
            }
            "add" | "replace" => {
                new.pointer_mut(parent)?
                    .as_object_mut()?
                    .insert(key.to_owned(), operation["value"].clone());
            }
            "remove" => drop(new.pointer_mut(parent)?.as_object_mut()?.remove(key)?),
            _ => (),
        }
    }
    Some(new)
}
