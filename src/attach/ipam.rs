//! The IPAM plugin of a network. A rail-ipam of the same build, however it was installed, is called
//! as a function: starting a process takes as long as everything that it does. A rail-ipam of
//! another build, and every other plugin, is a process.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::cni::{
    self, AddResult, Args, Command, Delegate, Network, Plugin as _, Strictness, Version,
};
use crate::error::Failure;
use crate::ipam::Ipam as RailIpam;
use crate::log;
use crate::node::Node;

/// Time limit for the answer of an IPAM plugin. Runtimes give the start of a pod some minutes, for
/// all its networks together.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An IPAM plugin that was found, and what it is called with.
#[derive(Debug)]
pub struct Ipam<'a> {
    program: PathBuf,
    /// Whether `program` is the rail-ipam of this build.
    is_function: bool,
    name: &'a str,
    stdin: &'a [u8],
    args: &'a Args,
    path: &'a [PathBuf],
    node: &'a Node,
}

impl<'a> Ipam<'a> {
    /// Finds the plugin `name` in the directories `path`, to be called with `stdin` and `args`,
    /// which is CNI_ARGS.
    pub fn find(
        name: &'a str,
        path: &'a [PathBuf],
        args: &'a Args,
        stdin: &'a [u8],
        node: &'a Node,
    ) -> Result<Ipam<'a>> {
        let program = cni::find_plugin(name, path)?;
        let is_function = name == RailIpam::NAME && cni::is_of_this_build(&program);
        Ok(Ipam {
            program,
            is_function,
            name,
            stdin,
            args,
            path,
            node,
        })
    }

    /// Finds the plugin in CNI_PATH of this call, to be called with its CNI_ARGS.
    pub fn for_network(
        name: &'a str,
        network: &'a Network,
        stdin: &'a [u8],
        node: &'a Node,
    ) -> Result<Ipam<'a>> {
        Ipam::find(name, &network.path, &network.args, stdin, node)
    }

    /// Calls ADD and returns the result, converted to the newest version.
    pub fn add(&self, command: &Command, version: Version) -> Result<AddResult> {
        if self.is_function {
            return self.call(command).map(Option::unwrap_or_default);
        }
        self.process(PATIENCE).add(command, version)
    }

    /// Calls any other verb; its output is ignored.
    pub fn run(&self, command: &Command) -> Result<()> {
        self.run_within(command, PATIENCE)
    }

    /// Like [`Ipam::run`], with a time limit of its own if the plugin is a process. The function
    /// has a deadline wherever it waits.
    pub fn run_within(&self, command: &Command, patience: Duration) -> Result<()> {
        if self.is_function {
            return self.call(command).map(drop);
        }
        self.process(patience).run(command).map(drop)
    }

    fn process(&self, patience: Duration) -> Delegate<'_> {
        let Ipam {
            program,
            name,
            stdin,
            args,
            path,
            ..
        } = self;
        Delegate {
            program,
            name,
            stdin,
            args: &args.raw,
            path,
            patience,
        }
    }

    /// Calls the function. Its error is what the process would have printed.
    fn call(&self, command: &Command) -> Result<Option<AddResult>> {
        let is_del = matches!(command, Command::Del(..));
        let strictness = if is_del {
            Strictness::Lenient
        } else {
            Strictness::Strict
        };
        let (stdin, args, path) = (self.stdin.to_vec(), self.args.clone(), self.path.to_vec());
        let done =
            Network::parse(stdin, args, path, RailIpam::KEYS, strictness).and_then(|network| {
                let _speaking = log::speaking_as(cni::call_of::<RailIpam<'_>>(&network, command));
                cni::perform(&RailIpam::called_by(self.node), &network, command)
            });
        done.map_err(|error| {
            let answer = cni::answer(Version::V110.as_str(), &error, is_del);
            anyhow::Error::new(Failure::relayed(answer))
        })
    }
}
