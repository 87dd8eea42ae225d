//! Where one check runs: a host with the devices of the description, pods, and the plugin.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::beside::Beside;
use crate::call::{Call, Ran, Running};
use crate::description::{Description, Kind};
use crate::ensure;
use crate::look::{difference, firewall, ip, matches, of_namespace, settled};
use crate::replay::{Replay, Step};
use crate::sandbox::{self, DIR, Inhabitants};
use crate::settings::{Settings, Stop};
use crate::value::{SHOWN, answer, cut, map_texts, quoted, result_of, with};

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
    /// A text of a description, for this attachment. What is `{MAC}` is not known before the
    /// devices are there.
    pub fn filled(&self, text: &str) -> String {
        text.replace("{N}", &self.n.to_string())
            .replace("{IFNAME}", &self.ifname)
            .replace("{NETNS}", &self.netns.to_string_lossy())
            .replace("{CONTAINER}", &self.container)
            .replace("{DIR}", DIR)
    }

    /// Fails if the plugin took the namespace of the pod away: it is the runtime's.
    fn has_netns(&self) -> Result<(), Stop> {
        match sandbox::is_netns(&self.netns) {
            true => Ok(()),
            false => Err(Stop::Fails(format!(
                "{} is no namespace any more",
                self.netns.display()
            ))),
        }
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
    replay: RefCell<Replay>,
    calls: Cell<usize>,
    looks: RefCell<Vec<(String, Value)>>,
    inhabitants: Inhabitants,
    beside: RefCell<Option<Beside>>,
    is_furnished: Cell<bool>,
    path: RefCell<Vec<PathBuf>>,
    attachments: RefCell<BTreeMap<usize, Attachment>>,
    deadline: Instant,
}

/// The name of the host among the pods.
const HOST: &str = "host";

fn left_out(reason: String) -> Stop {
    Stop::LeftOut(reason)
}

/// What a failed line of `host` or `pod` says. What a machine may lack is in `needs`.
fn of_line(stop: Stop) -> Stop {
    match stop {
        Stop::LeftOut(reason) => {
            Stop::Unusable(format!("host or pod of the description: {reason}"))
        }
        other => other,
    }
}

impl<'s> World<'s> {
    /// Runs `check` in a new world, in a thread of its own, and returns what it says, with what was
    /// done.
    pub fn with<T: Send>(
        settings: &'s Settings,
        check: impl FnOnce(&World<'s>) -> Result<T, Stop> + Send,
    ) -> (Result<T, Stop>, Replay) {
        let inside = move || {
            let inhabitants =
                match sandbox::enter_world().and_then(|()| Inhabitants::of_this_world()) {
                    Ok(inhabitants) => inhabitants,
                    Err(reason) => return (Err(Stop::LeftOut(reason)), Replay::default()),
                };
            let world = World {
                settings,
                inhabitants,
                beside: RefCell::default(),
                replay: RefCell::default(),
                calls: Cell::new(0),
                looks: RefCell::default(),
                is_furnished: Cell::new(false),
                path: RefCell::new(settings.path.clone()),
                attachments: RefCell::default(),
                deadline: Instant::now() + settings.check_limit,
            };
            let verdict = world.host("link set lo up").and_then(|_| check(&world));
            // What is seen without it says nothing of the plugin.
            let ended = world.beside.borrow().as_ref().and_then(Beside::ended);
            let verdict = ended.map_or(verdict, |why| {
                Err(Stop::Unusable(format!("{why}, during a check")))
            });
            (verdict, world.replay.take())
        };
        std::thread::scope(|scope| {
            let ended = scope.spawn(inside).join();
            ended.unwrap_or_else(|_| {
                (
                    Err(left_out("the suite itself failed".to_owned())),
                    Replay::default(),
                )
            })
        })
    }

    /// The same, and once more if a call does not end: the kernel may let one wait for others'
    /// namespaces, and a machine may be busy. Only what hangs twice is a failure.
    pub fn with_patience<T: Send>(
        settings: &'s Settings,
        check: impl Fn(&World<'s>) -> Result<T, Stop> + Sync,
    ) -> (Result<T, Stop>, Replay) {
        let (verdict, replay) = World::with(settings, &check);
        let Err(Stop::Hung(seen)) = verdict else {
            return (verdict, replay);
        };
        let (verdict, replay) = World::with(settings, &check);
        match verdict {
            Err(Stop::Hung(seen)) => (Err(Stop::Fails(seen)), replay),
            other => {
                let plugin = &settings.description.name;
                let _ = writeln!(
                    std::io::stderr(),
                    "cni-conformance: {plugin}: {seen}; it did when it was asked again"
                );
                (other, replay)
            }
        }
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

    /// Leaves the check out unless the plugin claims a version from 1.0.0 on, in which errors 4 to
    /// 7 have their meaning.
    pub fn claims_version_1(&self) -> Result<(), Stop> {
        match self.description().newest().starts_with('1') {
            true => Ok(()),
            false => Err(left_out("it claims no version 1".to_owned())),
        }
    }

    /// Leaves the check out for other kinds.
    pub fn only(&self, kinds: &[Kind]) -> Result<(), Stop> {
        match kinds.contains(&self.description().kind) {
            true => Ok(()),
            false => Err(left_out("another kind of plugin is asked this".to_owned())),
        }
    }

    /// Leaves the check out unless the plugin calls another one.
    pub fn delegates(&self) -> Result<(), Stop> {
        match self.description().delegates() {
            true => Ok(()),
            false => Err(left_out(
                "it calls no other plugin: `delegate` of a description says where one is"
                    .to_owned(),
            )),
        }
    }

    /// Leaves the check out unless the plugin calls an IPAM plugin.
    pub fn calls_ipam(&self) -> Result<(), Stop> {
        match self.description().calls_ipam() {
            true => Ok(()),
            false => Err(left_out("it calls no IPAM plugin".to_owned())),
        }
    }

    /// Leaves the check out where nothing that the suite sees can be undone, or be left.
    pub fn changes(&self) -> Result<(), Stop> {
        match self.settings.changes {
            true => Ok(()),
            false => Err(left_out(
                "its ADD changes nothing that is compared, so there is nothing to undo".to_owned(),
            )),
        }
    }

    /// Leaves the check out where a DEL directly after ADD fails: that is told once.
    pub fn dels(&self) -> Result<(), Stop> {
        match self.settings.dels {
            true => Ok(()),
            false => Err(left_out("its DEL fails".to_owned())),
        }
    }

    /// Leaves the check out for an IPAM plugin that has no leases.
    pub fn keeps_leases(&self) -> Result<(), Stop> {
        match self.description().stateless {
            false => Ok(()),
            true => Err(left_out("it keeps no state".to_owned())),
        }
    }

    /// Writes down what is done, as a line of bash.
    pub fn step(&self, text: String) {
        self.replay.borrow_mut().steps.push(Step::Shell(text));
    }

    /// What was asked does not hold: what was seen, and a condition of bash that says the same.
    pub fn fails_by(&self, shell: impl AsRef<str>, seen: String) -> Stop {
        shell
            .as_ref()
            .clone_into(&mut self.replay.borrow_mut().holds);
        Stop::Fails(seen)
    }

    // --- the host and the pods
    // ----------------------------------------------------------------------------------

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
        for line in self
            .description()
            .host
            .iter()
            .filter(|line| !line.contains("{N}"))
        {
            self.host(line).map_err(of_line)?;
        }
        self.start_beside()
    }

    /// Starts what runs beside the plugin, and waits until it is ready.
    fn start_beside(&self) -> Result<(), Stop> {
        let Some(beside) = &self.description().beside else {
            return Ok(());
        };
        let ready = beside.readiness().map_err(Stop::Unusable)?;
        let mut words = beside.command.iter().map(|word| word.replace("{DIR}", DIR));
        let name = words.next().unwrap_or_default();
        let words: Vec<_> = words.collect();
        let own = (name == "cni-conformance")
            .then(std::env::current_exe)
            .and_then(Result::ok);
        let found = || {
            self.path
                .borrow()
                .iter()
                .map(|path| path.join(&name))
                .find(|path| path.is_file())
        };
        let program = own.or_else(found).unwrap_or_else(|| PathBuf::from(&name));
        let env = self
            .description()
            .env
            .iter()
            .map(|(name, value)| (name, value.replace("{DIR}", DIR)));
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

    /// Removes a file, if it is there.
    pub fn remove(&self, path: &Path) {
        self.step(format!("rm -f {}", path.display()));
        let _ = fs::remove_file(path);
    }

    /// Another path of the namespace of a pod.
    pub fn link_to(&self, attachment: &Attachment) -> Result<PathBuf, Stop> {
        let link = Path::new(DIR).join("bin/link");
        self.write(&Path::new(DIR).join("bin/.made"), "")?;
        self.step(format!(
            "ln -s {} {}",
            attachment.netns.display(),
            link.display()
        ));
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
    pub fn attachment_in(
        &self,
        n: usize,
        container: &str,
        ifname: &str,
    ) -> Result<Attachment, Stop> {
        self.furnish()?;
        let mut attachment = Attachment {
            container: container.to_owned(),
            netns: Path::new("/run/netns").join(container),
            ifname: ifname.to_owned(),
            n,
            conf: self.description().conf.clone(),
        };
        for line in self
            .description()
            .host
            .iter()
            .filter(|line| line.contains("{N}"))
        {
            self.host(&attachment.filled(line)).map_err(of_line)?;
        }
        for line in &self.description().pod {
            self.in_pod(&attachment, &attachment.filled(line))
                .map_err(of_line)?;
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
        let mac = shown[0]["address"]
            .as_str()
            .unwrap_or("02:00:00:00:00:01")
            .to_owned();
        attachment.conf = map_texts(&attachment.conf, &|text| {
            attachment.filled(text).replace("{MAC}", &mac)
        });
        let attachment = self.of_version(attachment, self.description().newest());
        self.attachments.borrow_mut().insert(n, attachment.clone());
        Ok(attachment)
    }

    /// Attachment `n`, which was made before.
    pub fn again(&self, n: usize) -> Result<Attachment, Stop> {
        self.attachments
            .borrow()
            .get(&n)
            .cloned()
            .ok_or_else(|| left_out(format!("no attachment {n}")))
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

    /// Runs a plugin once and lets it go, then returns the [`World::state`]. What a plugin makes
    /// once and keeps, as a bridge or a directory, is in it. The devices of the check must be there
    /// before.
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
        self.state()
    }

    /// Attachment 0 of a plugin whose ADD and DEL work at all, also a second time: left out if not.
    pub fn working(&self) -> Result<Attachment, Stop> {
        let one = self.attachment(0)?;
        self.baseline()?;
        let warm = self.renewed(self.again(99)?)?;
        let result = self.add(&warm)?;
        self.make_room(&warm, &result)?;
        Ok(one)
    }

    /// `one` to be added once more: what a meta plugin changed in a pod it may leave to the end of
    /// the pod, so that gets a new one.
    pub fn renewed(&self, one: Attachment) -> Result<Attachment, Stop> {
        if self.description().kind != Kind::Meta {
            return Ok(one);
        }
        let number = 20 + self.attachments.borrow().len();
        self.attachment(number)
    }

    /// What must be as it was when everything was given back: links, addresses, routes, rules and
    /// firewall of the host, and files. Two looks in succession see the same: the kernel does some
    /// of its work later.
    pub fn state(&self) -> Result<Value, Stop> {
        self.seen(HOST, settled(|| self.look()))
    }

    /// Remembers what was seen, so that a script can look at the same time.
    fn seen(&self, space: &str, state: Result<Value, Stop>) -> Result<Value, Stop> {
        let state = state?;
        let mut looks = self.looks.borrow_mut();
        self.replay
            .borrow_mut()
            .steps
            .push(Step::Look(space.to_owned(), looks.len()));
        looks.push((space.to_owned(), state.clone()));
        Ok(state)
    }

    /// The number of the last look that saw this.
    fn look_of(&self, space: &str, state: &Value) -> usize {
        let looks = self.looks.borrow();
        looks
            .iter()
            .rposition(|(other, seen)| other == space && seen == state)
            .unwrap_or_default()
    }

    /// In a script: that a part of the host is as it was.
    pub fn same_part(&self, part: &str, before: &Value) -> String {
        format!("same_part {part} {}", self.look_of(HOST, before))
    }

    /// In a script: that a link of the host or of a pod is as it was.
    pub fn same_link(&self, space: &str, name: &str, before: &Value) -> String {
        format!("same_link {space} {name} {}", self.look_of(space, before))
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
            rules.retain(|rule| {
                !self
                    .description()
                    .stays
                    .iter()
                    .any(|pattern| matches(pattern, rule))
            });
            state["firewall"] = json!(rules);
        }
        Ok(state)
    }

    /// The same of a pod, without files.
    pub fn pod_state(&self, attachment: &Attachment) -> Result<Value, Stop> {
        self.seen(
            &attachment.container,
            settled(|| self.look_into(attachment)),
        )
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
                || self
                    .description()
                    .files
                    .keys()
                    .any(|file| file.replace("{DIR}", DIR) == text);
            if is_ours
                || self
                    .description()
                    .stays
                    .iter()
                    .any(|pattern| matches(pattern, &text))
            {
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
        let shell = || format!("same {HOST} {}", self.look_of(HOST, before));
        self.is_soon(before, when, shell, || self.look())
    }

    /// Fails if the pod is not as it was.
    pub fn pod_is_as(
        &self,
        attachment: &Attachment,
        before: &Value,
        when: &str,
    ) -> Result<(), Stop> {
        let space = &attachment.container;
        let shell = || {
            format!(
                "is_netns {} && same {space} {}",
                attachment.netns.display(),
                self.look_of(space, before)
            )
        };
        let when = format!("{when}, in the pod");
        let look = || match self.look_into(attachment) {
            Err(Stop::Fails(seen)) => Err(self.fails_by(shell(), seen)),
            other => other,
        };
        self.is_soon(before, &when, shell, look)
    }

    /// Fails if what `look` sees is not as before within two seconds.
    fn is_soon(
        &self,
        before: &Value,
        when: &str,
        shell: impl Fn() -> String,
        look: impl Fn() -> Result<Value, Stop>,
    ) -> Result<(), Stop> {
        let begun = Instant::now();
        loop {
            let Some(text) = difference(before, &look()?) else {
                return Ok(());
            };
            ensure!(
                self,
                begun.elapsed() < Duration::from_secs(2),
                shell(),
                "{when}: {text}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    // --- the plugin
    // ---------------------------------------------------------------------------------------------

    /// A call for an attachment.
    pub fn call(&self, verb: &str, attachment: &Attachment) -> Call {
        let path: Vec<_> = self
            .path
            .borrow()
            .iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        let mut call = Call::new(self.settings.program.clone())
            .var("CNI_COMMAND", verb)
            .var("CNI_CONTAINERID", &attachment.container)
            .var("CNI_NETNS", attachment.netns.to_string_lossy())
            .var("CNI_IFNAME", &attachment.ifname)
            .var("CNI_PATH", path.join(":"))
            .var(
                "CNI_ARGS",
                format!(
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-{}",
                    attachment.n
                ),
            )
            .conf(&attachment.conf);
        for (name, value) in &self.description().env {
            call = call.var(name, attachment.filled(value));
        }
        call
    }

    /// Makes a call. One that does not end is a failure.
    pub fn run(&self, call: &Call) -> Result<Ran, Stop> {
        self.at_once(std::slice::from_ref(call))?
            .pop()
            .ok_or_else(|| left_out("no call".to_owned()))
    }

    /// Makes calls at the same time: none has all of its configuration before all were started.
    pub fn at_once(&self, calls: &[Call]) -> Result<Vec<Ran>, Stop> {
        let limit = self.call_limit()?;
        let first = self.calls.replace(self.calls.get() + calls.len());
        let numbered = calls
            .iter()
            .enumerate()
            .map(|(at, call)| (first + at, call.clone()));
        self.replay
            .borrow_mut()
            .steps
            .push(Step::Calls(numbered.collect()));
        let mut running = Vec::new();
        for call in calls {
            let program = self.settings.program.display();
            let started = call.start();
            running.push(
                started.map_err(|error| {
                    Stop::Unusable(format!("cannot execute {program}: {error}"))
                })?,
            );
        }
        // Many plugins begin when they have read stdin to its end.
        running.iter_mut().for_each(Running::end_input);
        // All of them are waited for: none may outlive the check.
        let ended: Vec<Option<Ran>> = running.into_iter().map(|one| one.wait(limit)).collect();
        let ended: Option<Vec<Ran>> = ended.into_iter().collect();
        let Some(ended) = ended else {
            return Err(self.hung(limit));
        };
        let answers = ended
            .iter()
            .enumerate()
            .filter_map(|(at, ran)| Some((first + at, ran.result().ok()?)));
        self.replay.borrow_mut().answers.extend(answers);
        ensure!(
            self,
            ended.iter().all(|ran| !ran.is_cut),
            "is_short",
            "the call printed more than 1 MiB"
        );
        Ok(ended)
    }

    /// How long the next call may take.
    fn call_limit(&self) -> Result<Duration, Stop> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.too_long());
        }
        Ok(left.min(self.settings.limit))
    }

    fn too_long(&self) -> Stop {
        left_out(format!(
            "the check takes longer than {} s: --check-limit allows more",
            self.settings.check_limit.as_secs()
        ))
    }

    fn hung(&self, limit: Duration) -> Stop {
        if limit < self.settings.limit {
            return self.too_long();
        }
        "returned".clone_into(&mut self.replay.borrow_mut().holds);
        Stop::Hung(format!("the call did not end within {} s", limit.as_secs()))
    }

    /// The one JSON object on stdout of a call.
    pub fn object(&self, ran: &Ran) -> Result<Value, Stop> {
        ran.result().map_err(|why| self.fails_by("is_object", why))
    }

    /// Makes a call that has to succeed.
    pub fn ok(&self, call: &Call) -> Result<Ran, Stop> {
        let ran = self.run(call)?;
        ensure!(
            self,
            ran.status == 0,
            "succeeded",
            "the call failed: {}",
            ran.told()
        );
        Ok(ran)
    }

    /// Makes a call that has to fail. The specification only recommends an error object.
    pub fn fails(&self, call: &Call, what: &str) -> Result<Ran, Stop> {
        let ran = self.run(call)?;
        let seen = cut(&ran.stdout, SHOWN);
        ensure!(
            self,
            ran.status != 0,
            "failed",
            "{what}: the call succeeded with {seen:?}"
        );
        Ok(ran)
    }

    /// Makes a call that has to fail, and returns its error object.
    pub fn refused(&self, call: &Call, what: &str) -> Result<Value, Stop> {
        self.fails(call, what)?
            .error()
            .map_err(|why| self.fails_by("failed && is_error", format!("{what}: {why}")))
    }

    /// VERSION as it is answered to others, for a check that is about something else: left out if
    /// that is no answer.
    pub fn tells_versions(&self, call: &Call) -> Result<(), Stop> {
        let ran = self.run(call)?;
        let told = ran
            .result()
            .ok()
            .filter(|told: &Value| ran.status == 0 && told["supportedVersions"].is_array());
        told.map(drop)
            .ok_or_else(|| left_out(format!("its VERSION tells no versions: {}", ran.told())))
    }

    /// ADD, for a check that is about something else: left out if it fails. That an ADD fails is
    /// told by checks of their own: the plainest one, one in each version, one after a DEL, and
    /// those of different pods at the same time.
    pub fn add(&self, attachment: &Attachment) -> Result<Value, Stop> {
        let ran = self.run(&self.call("ADD", attachment))?;
        if ran.status != 0 {
            return Err(left_out(format!("its ADD fails: {}", ran.told())));
        }
        ran.result().map_err(left_out)
    }

    /// The call of DEL, with the result as a runtime has it.
    pub fn del_call(&self, attachment: &Attachment, result: &Value) -> Call {
        self.call("DEL", attachment)
            .conf(&with(&attachment.conf, "prevResult", result.clone()))
    }

    /// DEL, which has to succeed.
    pub fn del(&self, attachment: &Attachment, result: &Value) -> Result<(), Stop> {
        let ran = self.run(&self.del_call(attachment, result))?;
        ensure!(
            self,
            ran.status == 0,
            "succeeded",
            "DEL fails: {}",
            ran.told()
        );
        Ok(())
    }

    /// DEL, for a check of what it leaves or spares: left out if it fails, which another check
    /// tells.
    pub fn deleted(&self, attachment: &Attachment, result: &Value) -> Result<(), Stop> {
        let ran = self.run(&self.del_call(attachment, result))?;
        if ran.status == 0 {
            Ok(())
        } else {
            Err(left_out(format!("its DEL fails: {}", ran.told())))
        }
    }

    /// DEL before the next ADD, for a check that is about something else: there may be a single
    /// address or device. Left out if it fails, or takes the pod away.
    pub fn make_room(&self, attachment: &Attachment, result: &Value) -> Result<(), Stop> {
        self.deleted(attachment, result)?;
        match sandbox::is_netns(&attachment.netns) {
            true => Ok(()),
            false => Err(left_out(
                "its DEL takes the namespace of the pod away".to_owned(),
            )),
        }
    }

    /// The same attachment, where the other plugin is the one of this name.
    pub fn delegating(&self, attachment: &Attachment, name: &str) -> Result<Attachment, Stop> {
        let mut attachment = attachment.clone();
        let pointer = self.description().delegate_at();
        let Some(section) = attachment.conf.pointer_mut(&pointer) else {
            return Err(Stop::Unusable(format!(
                "delegate: the configuration has no {pointer}"
            )));
        };
        // What is in there is for the plugin that a stand-in replaces; where that makes an
        // interface, both read it.
        if self.description().calls_ipam() {
            *section = json!({});
        }
        section["type"] = json!(name);
        Ok(attachment)
    }

    /// What a stand-in for the other plugin does with which nothing is wrong.
    pub fn good_answer(&self) -> String {
        let mut result = json!({"ips": [{"address": "10.77.0.2/24", "gateway": "10.77.0.1"}]});
        if !self.description().calls_ipam() {
            result["interfaces"] =
                json!([{"name": "net1", "mac": "02:00:00:00:00:0c", "sandbox": "/run/netns/c0"}]);
            result["ips"][0]["interface"] = json!(0);
        }
        answer(&result_of(&result, self.description().newest()))
    }
}

impl Drop for World<'_> {
    /// What a plugin left running does not outlive the check, nor what ran beside it.
    fn drop(&mut self) {
        self.inhabitants.end();
    }
}
