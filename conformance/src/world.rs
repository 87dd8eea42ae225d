//! Where one check runs: a host with the devices of the description, pods, and the plugin.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::beside::Beside;
use crate::call::{Call, Collected, Ran, Running, process_of, quoted};
use crate::description::{Description, Kind};
use crate::sandbox::{self, DIR, Inhabitants};
use crate::tracer::{self, Fate, WAITING};

/// Why a check ended before its end.
#[derive(Clone, Debug)]
pub enum Stop {
    /// The plugin does not do what is asked; what was seen.
    Fails(String),
    /// It cannot be asked; why.
    LeftOut(String),
    /// The plugin, or what runs beside it, cannot be executed, or a line of its description fails.
    Unusable(String),
}

/// Ends a check: what is asked does not hold.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            return Err($crate::world::Stop::Fails(format!($($seen)+)));
        }
    };
}

/// What is the same for all checks of a plugin.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The plugin.
    pub description: Description,
    /// Its executable.
    pub program: PathBuf,
    /// CNI_PATH.
    pub path: Vec<PathBuf>,
    /// How long a call may take.
    pub limit: Duration,
    /// How many system calls of a sweep are tried; all of them without a number.
    pub sample: Option<usize>,
    /// Are firewall rules compared? [`firewall`] must work here.
    pub sees_firewall: bool,
    /// Did an ADD succeed of which nothing is unusual? Then one that fails is a failure, wherever it is: a check that has more
    /// attachments at once than there can be is not run.
    pub adds: bool,
}

/// An attachment of a pod to the network, which need not have been made.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The container's ID.
    pub container: String,
    /// The path of its namespace.
    pub netns: PathBuf,
    /// The interface.
    pub ifname: String,
    /// Which device and address it has.
    pub n: usize,
    /// The configuration.
    pub conf: Value,
}

impl Attachment {
    /// A text of a description, for this attachment. What is `{MAC}` is not known before the devices are there.
    pub fn filled(&self, text: &str) -> String {
        text.replace("{N}", &self.n.to_string())
            .replace("{IFNAME}", &self.ifname)
            .replace("{NETNS}", &self.netns.to_string_lossy())
            .replace("{CONTAINER}", &self.container)
            .replace("{DIR}", DIR)
    }

    /// Fails if the plugin took the namespace of the pod away: it is the runtime's.
    fn has_netns(&self) -> Result<(), Stop> {
        ensure!(sandbox::is_netns(&self.netns), "{} is no namespace any more", self.netns.display());
        Ok(())
    }

    /// What `ip` shows of the pod.
    pub fn shown(&self, options: &str, command: &str) -> Result<String, Stop> {
        self.has_netns()?;
        ip(&format!("{options} -n {} {command}", self.container)).map_err(left_out)
    }
}

/// See the module.
#[derive(Debug)]
pub struct World<'s> {
    /// The plugin.
    pub settings: &'s Settings,
    steps: RefCell<Vec<String>>,
    inhabitants: Inhabitants,
    beside: RefCell<Option<Beside>>,
    is_furnished: Cell<bool>,
    path: RefCell<Vec<PathBuf>>,
    attachments: RefCell<BTreeMap<usize, Attachment>>,
    baseline: RefCell<Value>,
}

/// How a traced call ended.
#[derive(Debug)]
pub struct Traced {
    /// Exit status; 128 + the signal if one ended it.
    pub status: i32,
    /// How many system calls there were that can be swept.
    pub calls: usize,
    /// Who was killed before what.
    pub killed: Option<String>,
    /// What it printed.
    pub stdout: String,
}

fn left_out(reason: String) -> Stop {
    Stop::LeftOut(reason)
}

/// What a failed line of `host` or `pod` says. What a machine may lack is in `needs`.
fn of_line(stop: Stop) -> Stop {
    match stop {
        Stop::LeftOut(reason) => Stop::Unusable(format!("host or pod of the description: {reason}")),
        other => other,
    }
}

impl<'s> World<'s> {
    /// Runs `check` in a new world, in a thread of its own, and returns what it says, with the steps as shell commands.
    pub fn with<T: Send>(
        settings: &'s Settings,
        check: impl FnOnce(&World<'s>) -> Result<T, Stop> + Send,
    ) -> (Result<T, Stop>, Vec<String>) {
        let inside = move || {
            let inhabitants = match sandbox::enter_world().and_then(|()| Inhabitants::of_this_world()) {
                Ok(inhabitants) => inhabitants,
                Err(reason) => return (Err(Stop::LeftOut(reason)), Vec::new()),
            };
            let world = World {
                settings,
                inhabitants,
                beside: RefCell::default(),
                steps: RefCell::default(),
                is_furnished: Cell::new(false),
                path: RefCell::new(settings.path.clone()),
                attachments: RefCell::default(),
                baseline: RefCell::default(),
            };
            let verdict = world.host("link set lo up").and_then(|_| check(&world));
            // What is seen without it says nothing of the plugin.
            let ended = world.beside.borrow().as_ref().and_then(Beside::ended);
            let verdict = ended.map_or(verdict, |why| Err(Stop::Unusable(format!("{why}, during a check"))));
            (verdict, world.steps.take())
        };
        std::thread::scope(|scope| {
            let ended = scope.spawn(inside).join();
            ended.unwrap_or_else(|_| (Err(left_out("the suite itself failed".to_owned())), Vec::new()))
        })
    }

    /// The plugin's description.
    pub fn description(&self) -> &'s Description {
        &self.settings.description
    }

    /// Leaves the check out unless the plugin claims `verb`.
    pub fn claims(&self, verb: &str) -> Result<(), Stop> {
        match self.description().claims(verb) {
            true => Ok(()),
            false => Err(left_out(format!("it does not claim {verb}"))),
        }
    }

    /// Leaves the check out for other kinds.
    pub fn only(&self, kinds: &[Kind]) -> Result<(), Stop> {
        match kinds.contains(&self.description().kind) {
            true => Ok(()),
            false => Err(left_out("another kind of plugin is asked this".to_owned())),
        }
    }

    /// Leaves the check out unless the plugin calls an IPAM plugin.
    pub fn delegates(&self) -> Result<(), Stop> {
        match self.description().delegates() {
            true => Ok(()),
            false => Err(left_out("it calls no IPAM plugin".to_owned())),
        }
    }

    /// Leaves the check out for an IPAM plugin that has no leases.
    pub fn keeps_leases(&self) -> Result<(), Stop> {
        match self.description().stateless {
            false => Ok(()),
            true => Err(left_out("it keeps no state".to_owned())),
        }
    }

    /// The steps are those of another world.
    pub fn take_over(&self, steps: Vec<String>) {
        self.steps.replace(steps);
    }

    /// Writes down what is done, as a shell command.
    pub fn step(&self, text: String) {
        self.steps.borrow_mut().push(text);
    }

    // --- the host and the pods ----------------------------------------------------------------------------------

    /// `ip` on the host; it must succeed.
    pub fn host(&self, arguments: &str) -> Result<String, Stop> {
        self.step(format!("ip {arguments}"));
        ip(arguments).map_err(left_out)
    }

    /// `ip` in the namespace of a pod; it must succeed.
    pub fn in_pod(&self, attachment: &Attachment, arguments: &str) -> Result<String, Stop> {
        attachment.has_netns()?;
        self.host(&format!("-n {} {arguments}", attachment.container))
    }

    /// Files that the plugin reads, and what it needs of the host once.
    fn furnish(&self) -> Result<(), Stop> {
        if self.is_furnished.replace(true) {
            return Ok(());
        }
        for (path, content) in &self.description().files {
            let path = PathBuf::from(path.replace("{DIR}", DIR));
            let text = match content {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            self.write(&path, &text.replace("{DIR}", DIR))?;
        }
        for line in self.description().host.iter().filter(|line| !line.contains("{N}")) {
            self.host(line).map_err(of_line)?;
        }
        self.start_beside()
    }

    /// Starts what runs beside the plugin, and waits until it is ready.
    fn start_beside(&self) -> Result<(), Stop> {
        let Some(beside) = &self.description().beside else { return Ok(()) };
        let ready = beside.readiness().map_err(Stop::Unusable)?;
        let mut words = beside.command.iter().map(|word| word.replace("{DIR}", DIR));
        let name = words.next().unwrap_or_default();
        let words: Vec<_> = words.collect();
        let own = (name == "cni-conformance").then(std::env::current_exe).and_then(Result::ok);
        let found = || self.path.borrow().iter().map(|path| path.join(&name)).find(|path| path.is_file());
        let program = own.or_else(found).unwrap_or_else(|| PathBuf::from(&name));
        let env = self.description().env.iter().map(|(name, value)| (name, value.replace("{DIR}", DIR)));
        let shown: Vec<_> = [&*program.to_string_lossy()]
            .into_iter()
            .chain(words.iter().map(String::as_str))
            .map(quoted)
            .collect();
        self.step(format!("{} &", shown.join(" ")));
        self.step(ready.shell());
        let mut command = Command::new(program);
        command.args(words).envs(env);
        let started = Beside::start(command, &ready).map_err(Stop::Unusable)?;
        self.beside.replace(Some(started));
        Ok(())
    }

    /// Writes a file in the world.
    pub fn write(&self, path: &Path, text: &str) -> Result<(), Stop> {
        let told = |error: std::io::Error| left_out(format!("{}: {error}", path.display()));
        let directory = path.parent().unwrap_or(Path::new("/"));
        if !directory.exists() {
            self.step(format!("mkdir -p {}", directory.display()));
            fs::create_dir_all(directory).map_err(told)?;
        }
        self.step(format!("printf %s {} >{}", quoted(text), path.display()));
        fs::write(path, text).map_err(told)
    }

    /// Another path of the namespace of a pod.
    pub fn link_to(&self, attachment: &Attachment) -> Result<PathBuf, Stop> {
        let link = Path::new(DIR).join("bin/link");
        self.write(&Path::new(DIR).join("bin/.made"), "")?;
        self.step(format!("ln -s {} {}", attachment.netns.display(), link.display()));
        symlink(&attachment.netns, &link)
            .map_err(|error| left_out(format!("{}: {error}", link.display())))?;
        Ok(link)
    }

    /// Attachment `n` to a pod of its own.
    pub fn attachment(&self, n: usize) -> Result<Attachment, Stop> {
        let container = format!("c{n}");
        let netns = Path::new("/run/netns").join(&container);
        self.step(format!("ip netns add {container}"));
        sandbox::make_netns(&netns).map_err(left_out)?;
        self.host(&format!("-n {container} link set lo up"))?;
        self.attachment_in(n, &container, "net1")
    }

    /// Attachment `n` to a pod that there is.
    pub fn attachment_in(&self, n: usize, container: &str, ifname: &str) -> Result<Attachment, Stop> {
        self.furnish()?;
        let mut attachment = Attachment {
            container: container.to_owned(),
            netns: Path::new("/run/netns").join(container),
            ifname: ifname.to_owned(),
            n,
            conf: self.description().conf.clone(),
        };
        for line in self.description().host.iter().filter(|line| line.contains("{N}")) {
            self.host(&attachment.filled(line)).map_err(of_line)?;
        }
        for line in &self.description().pod {
            self.in_pod(&attachment, &attachment.filled(line)).map_err(of_line)?;
        }
        let conf = &mut attachment.conf;
        if conf["name"].is_null() {
            conf["name"] = json!("conformance");
        }
        if self.description().kind == Kind::Meta {
            let default = json!({
                "interfaces": [{"name": "{IFNAME}", "mac": "{MAC}", "sandbox": "{NETNS}"}],
                "ips": [{"address": "10.9.{N}.2/24", "gateway": "10.9.{N}.1", "interface": 0}],
            });
            conf["prevResult"] = self.description().prev_result.clone().unwrap_or(default);
        }
        // The device is the one of the description's commands.
        let shown = ip(&format!("-json -n {container} link show {ifname}")).unwrap_or_default();
        let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
        let mac = shown[0]["address"].as_str().unwrap_or("02:00:00:00:00:01").to_owned();
        attachment.conf = map_texts(&attachment.conf, &|text| attachment.filled(text).replace("{MAC}", &mac));
        let attachment = self.of_version(attachment, self.description().newest());
        self.attachments.borrow_mut().insert(n, attachment.clone());
        Ok(attachment)
    }

    /// Attachment `n`, which was made before.
    pub fn again(&self, n: usize) -> Result<Attachment, Stop> {
        self.attachments.borrow().get(&n).cloned().ok_or_else(|| left_out(format!("no attachment {n}")))
    }

    /// The same, in another version.
    pub fn of_version(&self, mut attachment: Attachment, version: &str) -> Attachment {
        attachment.conf["cniVersion"] = json!(version);
        if !attachment.conf["prevResult"].is_null() {
            attachment.conf["prevResult"] = result_of(&attachment.conf["prevResult"], version);
        }
        attachment
    }

    /// A result as the plugin before this one would give it, if there is one.
    pub fn previous(&self, attachment: &Attachment) -> Option<Value> {
        let eth0 = json!({
            "cniVersion": self.description().newest(),
            "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:0b", "sandbox": attachment.netns}],
            "ips": [{"address": "10.99.0.2/24", "gateway": "10.99.0.1", "interface": 0}],
        });
        let own = Some(attachment.conf["prevResult"].clone()).filter(Value::is_object);
        own.or_else(|| self.description().chained.then_some(eth0))
    }

    /// Deletes the namespace of a pod as a runtime does.
    pub fn delete_netns(&self, attachment: &Attachment) -> Result<(), Stop> {
        self.step(format!("ip netns del {}", attachment.container));
        sandbox::delete_netns(&attachment.netns).map_err(left_out)
    }

    /// Installs a program in a directory that is first in CNI_PATH.
    pub fn stand_in(&self, name: &str, script: &str) -> Result<(), Stop> {
        let bin = Path::new(DIR).join("bin");
        let path = bin.join(name);
        self.write(&path, &format!("#!/bin/sh\n{script}\n"))?;
        self.step(format!("chmod +x {}", path.display()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .map_err(|error| left_out(format!("{}: {error}", path.display())))?;
        if self.path.borrow().first() != Some(&bin) {
            self.path.borrow_mut().insert(0, bin);
        }
        Ok(())
    }

    /// Runs a plugin once and lets it go, then returns the [`World::state`]. What a plugin makes once and keeps, as a
    /// bridge or a directory, is in it. The devices of the check must be there before.
    pub fn baseline(&self) -> Result<Value, Stop> {
        self.baseline_of(99)
    }

    /// The same with the attachment `n`.
    pub fn baseline_of(&self, n: usize) -> Result<Value, Stop> {
        let warm = self.attachment(n)?;
        let result = self.add(&warm)?;
        let ran = self.run(&self.del_call(&warm, &result))?;
        if ran.status != 0 {
            return Err(left_out(format!("its DEL fails: {}", ran.told())));
        }
        // Its pod stays: the kernel removes what is in it whenever it comes to it.
        let state = self.state()?;
        self.baseline.replace(state.clone());
        Ok(state)
    }

    /// Attachment 0 of a plugin whose ADD and DEL work at all: left out if not.
    pub fn working(&self) -> Result<Attachment, Stop> {
        let one = self.attachment(0)?;
        self.baseline()?;
        Ok(one)
    }

    /// `one` to be added once more: what a meta plugin changed in a pod it may leave to the end of the pod, so that gets a
    /// new one.
    pub fn renewed(&self, one: Attachment) -> Result<Attachment, Stop> {
        if self.description().kind != Kind::Meta {
            return Ok(one);
        }
        let number = 20 + self.attachments.borrow().len();
        self.attachment(number)
    }

    /// What [`World::baseline`] returned.
    pub fn kept_baseline(&self) -> Value {
        self.baseline.borrow().clone()
    }

    /// What must be as it was when everything was given back: links, addresses, routes, rules and firewall of the host, and
    /// files.
    /// Two looks in succession see the same: the kernel does some of its work later.
    pub fn state(&self) -> Result<Value, Stop> {
        settled(|| self.look())
    }

    fn look(&self) -> Result<Value, Stop> {
        let mut state = of_namespace("", &self.description().stays)?;
        let mut files = BTreeMap::new();
        for directory in ["/run", "/var/lib/cni", DIR] {
            self.list(Path::new(directory), &mut files);
        }
        state["files"] = json!(files);
        if self.settings.sees_firewall {
            let mut rules = firewall().map_err(left_out)?;
            rules.retain(|rule| !self.description().stays.iter().any(|pattern| matches(pattern, rule)));
            state["firewall"] = json!(rules);
        }
        Ok(state)
    }

    /// The same of a pod, without files.
    pub fn pod_state(&self, attachment: &Attachment) -> Result<Value, Stop> {
        settled(|| self.look_into(attachment))
    }

    fn look_into(&self, attachment: &Attachment) -> Result<Value, Stop> {
        attachment.has_netns()?;
        of_namespace(&format!("-n {}", attachment.container), &[])
    }

    fn list(&self, directory: &Path, files: &mut BTreeMap<String, bool>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let text = path.to_string_lossy().into_owned();
            let is_ours = ["/run/netns", "/dev/shm/conformance/bin"].contains(&text.as_str())
                || self.description().files.keys().any(|file| file.replace("{DIR}", DIR) == text);
            if is_ours || self.description().stays.iter().any(|pattern| matches(pattern, &text)) {
                continue;
            }
            if path.is_dir() {
                self.list(&path, files);
            } else {
                files.insert(text, true);
            }
        }
    }

    /// Fails if the host is not as it was.
    pub fn is_as(&self, before: &Value, when: &str) -> Result<(), Stop> {
        is_soon(before, when, || self.look())
    }

    /// Fails if the pod is not as it was.
    pub fn pod_is_as(&self, attachment: &Attachment, before: &Value, when: &str) -> Result<(), Stop> {
        is_soon(before, &format!("{when}, in the pod"), || self.look_into(attachment))
    }

    // --- the plugin ---------------------------------------------------------------------------------------------

    /// A call for an attachment.
    pub fn call(&self, verb: &str, attachment: &Attachment) -> Call {
        let path: Vec<_> =
            self.path.borrow().iter().map(|path| path.to_string_lossy().into_owned()).collect();
        let mut call = Call::new(self.settings.program.clone())
            .var("CNI_COMMAND", verb)
            .var("CNI_CONTAINERID", &attachment.container)
            .var("CNI_NETNS", attachment.netns.to_string_lossy())
            .var("CNI_IFNAME", &attachment.ifname)
            .var("CNI_PATH", path.join(":"))
            .var(
                "CNI_ARGS",
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-{}", attachment.n),
            )
            .conf(&attachment.conf);
        for (name, value) in &self.description().env {
            call = call.var(name, attachment.filled(value));
        }
        call
    }

    /// Makes a call. One that does not end is a failure.
    pub fn run(&self, call: &Call) -> Result<Ran, Stop> {
        self.at_once(std::slice::from_ref(call))?.pop().ok_or_else(|| left_out("no call".to_owned()))
    }

    /// Makes calls at the same time: none has all of its configuration before all were started.
    pub fn at_once(&self, calls: &[Call]) -> Result<Vec<Ran>, Stop> {
        let mut running = Vec::new();
        for call in calls {
            self.step(if calls.len() > 1 { format!("{} &", call.shell()) } else { call.shell() });
            let program = self.settings.program.display();
            let started = call.start();
            running
                .push(started.map_err(|error| Stop::Unusable(format!("cannot execute {program}: {error}")))?);
        }
        let limit = self.settings.limit;
        let hung = |_| self.hung();
        // Many plugins begin when they have read stdin to its end.
        running.iter_mut().for_each(Running::end_input);
        // All of them are waited for: none may outlive the check.
        let ended: Vec<_> = running.into_iter().map(|one| one.wait(limit).map_err(hung)).collect();
        let ended: Vec<Ran> = ended.into_iter().collect::<Result<_, _>>()?;
        ensure!(ended.iter().all(|ran| !ran.is_cut), "the call printed more than 1 MiB");
        Ok(ended)
    }

    fn hung(&self) -> Stop {
        Stop::Fails(format!("the call did not end within {} s", self.settings.limit.as_secs()))
    }

    /// Makes a call that has to succeed.
    pub fn ok(&self, call: &Call) -> Result<Ran, Stop> {
        let ran = self.run(call)?;
        ensure!(ran.status == 0, "the call failed: {}", ran.told());
        Ok(ran)
    }

    /// Makes a call that has to fail. The specification only recommends an error object.
    pub fn fails(&self, call: &Call, what: &str) -> Result<Ran, Stop> {
        let ran = self.run(call)?;
        ensure!(ran.status != 0, "{what}: the call succeeded with {:?}", cut(&ran.stdout, SHOWN));
        Ok(ran)
    }

    /// Makes a call that has to fail, and returns its error object.
    pub fn refused(&self, call: &Call, what: &str) -> Result<Value, Stop> {
        self.fails(call, what)?.error().map_err(|why| Stop::Fails(format!("{what}: {why}")))
    }

    /// ADD, for a check that is about something else. If it fails, so does the check, but of a plugin whose plainest ADD does
    /// not succeed either, it is left out.
    pub fn add(&self, attachment: &Attachment) -> Result<Value, Stop> {
        let stop = if self.settings.adds { Stop::Fails } else { Stop::LeftOut };
        let ran = self.run(&self.call("ADD", attachment))?;
        if ran.status != 0 {
            return Err(stop(format!("its ADD fails: {}", ran.told())));
        }
        ran.result().map_err(stop)
    }

    /// The call of DEL, with the result as a runtime has it.
    pub fn del_call(&self, attachment: &Attachment, result: &Value) -> Call {
        self.call("DEL", attachment).conf(&with(&attachment.conf, "prevResult", result.clone()))
    }

    /// DEL, which has to succeed.
    pub fn del(&self, attachment: &Attachment, result: &Value) -> Result<(), Stop> {
        let ran = self.run(&self.del_call(attachment, result))?;
        ensure!(ran.status == 0, "DEL fails: {}", ran.told());
        Ok(())
    }

    /// DEL before the next ADD, for a check that is about something else: there may be a single address or device. What is left
    /// is none of the check.
    pub fn make_room(&self, attachment: &Attachment, result: &Value) -> Result<(), Stop> {
        self.run(&self.del_call(attachment, result)).map(drop)
    }

    /// Makes a call and kills whoever makes its system call number `victim`.
    pub fn traced(&self, call: &Call, victim: Option<usize>) -> Result<Traced, Stop> {
        let failed = |error: std::io::Error| left_out(format!("cannot trace: {error}"));
        let conf = call.bytes().unwrap_or_default();
        self.step(match victim {
            Some(victim) => format!("# SIGKILL before system call {victim} of: {}", call.shell()),
            None => call.shell(),
        });
        let command = call
            .command(&WAITING)
            .and_then(|mut command| command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn());
        let mut child = command.map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&conf).map_err(failed)?;
        }
        let printed = child.stdout.take().map(Collected::of);
        let first = process_of(&child);
        // One that hangs is ended, with all that it started.
        let (over, is_over) = channel::<()>();
        let (limit, inhabitants) = (self.settings.limit, self.inhabitants.clone());
        let beside = self.beside.borrow().as_ref().map(Beside::process);
        let watcher = std::thread::spawn(move || {
            let is_late = is_over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            // What it left running is none of it.
            let is_hung = is_late && sandbox::is_running(first);
            if is_late {
                inhabitants.end(beside);
            }
            is_hung
        });
        let ended = tracer::follow(first, |point| match Some(point.count) == victim {
            true => Fate::Deadly,
            false => Fate::Made,
        });
        // It must not meet the next call.
        drop(over);
        if watcher.join().unwrap_or(false) {
            return Err(self.hung());
        }
        let mut stdout = Vec::new();
        if let Some(printed) = printed {
            printed.take(&mut stdout, Instant::now() + Duration::from_secs(2));
        }
        let stdout = cut(&String::from_utf8_lossy(&stdout), SHOWN);
        Ok(Traced { status: ended.status, calls: ended.calls, killed: ended.killed, stdout })
    }
}

impl Drop for World<'_> {
    /// What a plugin left running does not outlive the check, nor what ran beside it.
    fn drop(&mut self) {
        self.inhabitants.end(None);
    }
}

/// Runs ip(8).
pub fn ip(arguments: &str) -> Result<String, String> {
    ip_with(arguments, "")
}

/// Runs ip(8) with a text on stdin.
fn ip_with(arguments: &str, text: &str) -> Result<String, String> {
    let told = |error: std::io::Error| format!("ip {arguments}: {error}");
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(told)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read has ended, and says why.
        let _ = stdin.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(told)?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
        return Err(format!("this machine refuses ip {arguments}: {text}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The rules of nftables of this thread's namespace, each behind its table and chain; iptables-nft writes there, too.
pub fn firewall() -> Result<Vec<String>, String> {
    let told = |error: &dyn std::fmt::Display| format!("nft list ruleset: {error}");
    let output =
        Command::new("nft").args(["-s", "list", "ruleset"]).output().map_err(|error| told(&error))?;
    if !output.status.success() {
        return Err(told(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    let mut within: Vec<&str> = Vec::new();
    let mut rules = Vec::new();
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line == "}" {
            within.pop();
            continue;
        }
        let name = line.trim_end_matches(" {");
        rules.push([&within[..], &[name]].concat().join(": "));
        if name != line {
            within.push(name);
        }
    }
    // The order of tables is that in which they were made.
    rules.sort();
    Ok(rules)
}

/// What a namespace has: links with their addresses, routes, rules.
fn of_namespace(select: &str, stays: &[String]) -> Result<Value, Stop> {
    // Each process costs more than what it finds out.
    let see = |family: &str, what: &str| -> Result<Vec<Value>, Stop> {
        let arguments = format!("{family} -json -details {select} -batch -");
        let text = ip_with(&arguments, what).map_err(left_out)?;
        let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let values: Vec<_> = values.filter_map(Result::ok).collect();
        match values.len() {
            3 => Ok(values),
            count => Err(left_out(format!("ip {arguments} printed {count} lists for 3 commands"))),
        }
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let four = see("", "addr show\nroute show table all\nrule show\n")?;
    let six = see("-6", "route show table all proto static\nroute show table all proto boot\nrule show\n")?;
    let mut links = BTreeMap::new();
    for link in list(&four[0]) {
        let name = link["ifname"].as_str().unwrap_or_default().to_owned();
        if stays.iter().any(|pattern| matches(pattern, &name)) {
            continue;
        }
        let mut altnames: Vec<_> = list(&link["altnames"]).iter().map(Value::to_string).collect();
        altnames.sort();
        // The kernel gives and takes IPv6's link-local address by itself.
        let addresses = list(&link["addr_info"])
            .into_iter()
            .filter(|one| one["scope"] != "link" || one["family"] == "inet");
        let addresses: Vec<_> = addresses
            .map(|one| format!("{}/{}", one["local"].as_str().unwrap_or_default(), one["prefixlen"]))
            .collect();
        let is_up = list(&link["flags"]).iter().any(|flag| flag == "UP");
        let what = json!({
            "mtu": link["mtu"], "mac": link["address"], "altnames": altnames, "up": is_up, "addresses": addresses,
            "kind": link["linkinfo"]["info_kind"], "promisc": link["promiscuity"], "allmulti": link["allmulti"],
        });
        links.insert(name, what);
    }
    let mut routes = Vec::new();
    for routes_of in [&four[1], &six[0], &six[1]] {
        for route in list(routes_of) {
            let of = |key: &str| route[key].as_str().map_or_else(|| route[key].to_string(), str::to_owned);
            // With the addresses, the kernel makes those of IPv6 when it comes to it.
            let is_of_kernel = of("dst").contains(':') && of("protocol") == "kernel";
            if !is_of_kernel && !stays.iter().any(|pattern| matches(pattern, &of("dev"))) {
                let keys = ["dst", "gateway", "dev", "table", "type", "metric", "prefsrc"];
                routes.push(
                    keys.map(of).iter().filter(|text| *text != "null").cloned().collect::<Vec<_>>().join(" "),
                );
            }
        }
    }
    routes.sort();
    let rules = |value: &Value| list(value).iter().map(Value::to_string).collect::<Vec<_>>();
    Ok(json!({"links": links, "routes": routes, "rules": [rules(&four[2]), rules(&six[2])]}))
}

/// What two looks in succession see.
fn settled(look: impl Fn() -> Result<Value, Stop>) -> Result<Value, Stop> {
    let mut seen = look()?;
    for _ in 0..100 {
        let again = look()?;
        if again == seen {
            return Ok(seen);
        }
        seen = again;
    }
    Err(left_out("the links of this machine do not come to rest".to_owned()))
}

/// Fails if what `look` sees is not as before within two seconds.
fn is_soon(before: &Value, when: &str, look: impl Fn() -> Result<Value, Stop>) -> Result<(), Stop> {
    let begun = Instant::now();
    loop {
        let Some(text) = difference(before, &look()?) else { return Ok(()) };
        ensure!(begun.elapsed() < Duration::from_secs(2), "{when}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Is `text` what the pattern says: a name, or a beginning and `*`? A name is also that of a file in any directory.
fn matches(pattern: &str, text: &str) -> bool {
    let pattern = pattern.replace("{DIR}", DIR);
    match pattern.strip_suffix('*') {
        Some(begin) => text.starts_with(begin),
        None => text == pattern || text.rsplit('/').next() == Some(&pattern),
    }
}

/// The first difference, in words.
pub fn difference(before: &Value, after: &Value) -> Option<String> {
    if before == after {
        return None;
    }
    let (Some(old), Some(new)) = (before.as_object(), after.as_object()) else {
        if let (Some(old), Some(new)) = (before.as_array(), after.as_array()) {
            let gone = old.iter().find(|one| !new.contains(one)).map(|one| format!("{one} is gone"));
            let added = || new.iter().find(|one| !old.contains(one)).map(|one| format!("{one} is new"));
            // Some of them are there more often, or in another order.
            return gone.or_else(added).or_else(|| Some(format!("are {after}, and were {before}")));
        }
        return Some(format!("is {after}, and was {before}"));
    };
    for key in old.keys().chain(new.keys()) {
        let text = match (old.get(key), new.get(key)) {
            (Some(_), None) => Some("is gone".to_owned()),
            (None, Some(_)) => Some("is new".to_owned()),
            (Some(old), Some(new)) => difference(old, new),
            (None, None) => None,
        };
        if let Some(text) = text {
            return Some(format!("{key} {text}"));
        }
    }
    None
}

/// `value` with `text` made of each of its texts.
fn map_texts(value: &Value, text: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(one) => Value::String(text(one)),
        Value::Array(list) => list.iter().map(|one| map_texts(one, text)).collect(),
        Value::Object(map) => map.iter().map(|(key, one)| (text(key), map_texts(one, text))).collect(),
        other => other.clone(),
    }
}

/// `conf` with a key set.
pub fn with(conf: &Value, key: &str, value: Value) -> Value {
    let mut conf = conf.clone();
    conf[key] = value;
    conf
}

/// A result of interfaces, addresses and routes in the form of `version`.
pub fn result_of(result: &Value, version: &str) -> Value {
    let empty = Vec::new();
    let list = |key: &str| result[key].as_array().unwrap_or(&empty);
    let family = |one: &Value, key: &str| {
        if one[key].as_str().is_some_and(|text| text.contains(':')) { "6" } else { "4" }
    };
    let mut made = json!({"cniVersion": version});
    if ["0.1.0", "0.2.0"].contains(&version) {
        for (key, wanted) in [("ip4", "4"), ("ip6", "6")] {
            let first = list("ips").iter().find(|one| family(one, "address") == wanted);
            if let Some(first) = first {
                let routes: Vec<_> =
                    list("routes").iter().filter(|route| family(route, "dst") == wanted).collect();
                made[key] = json!({"ip": first["address"], "gateway": first["gateway"], "routes": routes});
            }
        }
        return made;
    }
    for key in ["interfaces", "routes", "dns"] {
        if !result[key].is_null() {
            made[key] = result[key].clone();
        }
    }
    let is_old = version < "1";
    made["ips"] = list("ips")
        .iter()
        .map(|one| if is_old { with(one, "version", json!(family(one, "address"))) } else { one.clone() })
        .collect();
    made
}

/// How many characters of what a plugin prints are shown.
pub const SHOWN: usize = 400;

/// The first characters of a text.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// `text` without characters that a terminal takes for orders.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

impl Ran {
    /// How it ended, in words.
    pub fn told(&self) -> String {
        let text = if self.stdout.trim().is_empty() { &self.stderr } else { &self.stdout };
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("exit status {}, {}", self.status, plain(&cut(&text, SHOWN)))
    }

    /// The one JSON object on stdout.
    pub fn result(&self) -> Result<Value, String> {
        match serde_json::from_str::<Value>(&self.stdout) {
            Ok(value) if value.is_object() => Ok(value),
            _ => Err(format!("stdout is not one JSON object: {:?}", cut(&self.stdout, SHOWN))),
        }
    }

    /// The error object.
    pub fn error(&self) -> Result<Value, String> {
        let error = self.result()?;
        let is_text = |key: &str| error[key].is_string();
        if !error["code"].is_u64()
            || !is_text("msg")
            || !(is_text("details") || error.get("details").is_none())
        {
            return Err(format!("not an error object (code, msg, details): {error}"));
        }
        Ok(error)
    }
}
