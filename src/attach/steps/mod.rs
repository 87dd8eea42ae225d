//! The steps of ADD, a file each. The list below is their order: ADD makes them from the top, and
//! undo runs from the bottom. [`crate::attach::step`] says what a step is.

mod bind;
pub mod device_info;
pub mod driver;
pub mod gateway;
pub mod gids;
pub mod guid;
pub mod host_addresses;
pub mod lease;
pub mod links;
pub mod moved;
pub mod netdev;
pub mod pkey;
pub mod rail;
pub mod rdma;
pub mod reset;
pub mod vf;
pub mod vf_mac;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::context::Cx;
use super::step::{Asked, Phase, Step};

/// A step's type, as [`Change`] has it.
pub trait Kind: Step + Sized {
    /// The step, if `change` is one of this type.
    fn of(change: &Change) -> Option<&Self>;

    /// Like [`Kind::of`], to change the step.
    fn of_mut(change: &mut Change) -> Option<&mut Self>;
}

/// Declares [`Change`] from the list of steps: the name in records, and the type with its module. A
/// step without data has no parentheses, for that is its form in records.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:literal => $module:ident::$kind:ident $(($data:ident))?,)*) => {
        $(use $module::$kind;)*

        /// One step of an ADD, as a record has it.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub enum Change {
            $($(#[$doc])* #[serde(rename = $name)] $kind $(($data))?,)*
        }

        /// The names of the steps in records, in the order of ADD.
        pub const NAMES: &[&str] = &[$($name),*];

        impl Change {
            /// Its name in records and in JSON.
            pub fn name(&self) -> &'static str {
                match self { $(Change::$kind { .. } => $name,)* }
            }

            /// The step behind the variant.
            pub fn step(&self) -> &dyn Step {
                match self {
                    $(Change::$kind $((step @ $data { .. }))? => data!(& $kind $(step $data)?),)*
                }
            }

            /// Like [`Change::step`], to make the step.
            pub fn step_mut(&mut self) -> &mut dyn Step {
                match self {
                    $(Change::$kind $((step @ $data { .. }))? => data!(mut $kind $(step $data)?),)*
                }
            }
        }

        $(
            impl Kind for $kind {
                fn of(change: &Change) -> Option<&$kind> {
                    match change {
                        Change::$kind $((step @ $data { .. }))? => Some(data!(& $kind $(step $data)?)),
                        _ => None,
                    }
                }

                fn of_mut(change: &mut Change) -> Option<&mut $kind> {
                    match change {
                        Change::$kind $((step @ $data { .. }))? => Some(data!(mut $kind $(step $data)?)),
                        _ => None,
                    }
                }
            }

            impl From<$kind> for Change {
                fn from(step: $kind) -> Change {
                    data!(into step $kind $($data)?)
                }
            }
        )*

        /// The planner of each step, in the order of ADD.
        pub const PLANNERS: &[Planner] = &[$(plan_in_phase::<$kind>),*];
    };
}

/// Plans one step; `None` if it belongs to another phase, or if this ADD does not need it.
pub type Planner = fn(Phase, &Asked<'_>, &mut Cx<'_>) -> Result<Option<Change>>;

fn plan_in_phase<S: Step + Into<Change>>(
    phase: Phase,
    asked: &Asked<'_>,
    cx: &mut Cx<'_>,
) -> Result<Option<Change>> {
    if S::phase() != phase {
        return Ok(None);
    }
    Ok(S::plan(asked, cx)?.map(Into::into))
}

/// The data of a matched variant, or the step itself where it has none: a type without size, of
/// which a leaked box takes no memory.
macro_rules! data {
    (& $kind:ident $step:ident $data:ident) => {
        $step
    };
    (& $kind:ident) => {
        &$kind
    };
    (mut $kind:ident $step:ident $data:ident) => {
        $step
    };
    (mut $kind:ident) => {
        Box::leak(Box::new($kind))
    };
    (into $step:ident $kind:ident $data:ident) => {
        Change::$kind($step)
    };
    (into $step:ident $kind:ident) => {{
        let $kind = $step;
        Change::$kind
    }};
}

steps! {
    /// An address is taken from the IPAM plugin.
    "lease" => lease::IpamLease(IpamLease),
    /// The addresses that the host has on the device leave it.
    "host-addresses" => host_addresses::HostAddresses(HostAddresses),
    /// The MAC that the PF reports of a VF follows what the VF gives itself.
    "vf-mac" => vf_mac::VfMac(VfMac),
    /// Name, MTU, MAC, altnames, sysctls and settings of the netdev are the pod's to change.
    "netdev" => netdev::Netdev(Netdev),
    /// The PF sets its VF.
    "vf" => vf::Vf(Vf),
    /// RDMA devices get a name and a quality of service, and move to the pod.
    "rdma" => rdma::Rdma(Rdma),
    /// The device is reset when it returns to the host.
    "reset" => reset::Reset,
    /// The pod may stack links on the device.
    "links" => links::Links,
    /// The device may be left with another driver.
    "driver" => driver::Driver(Driver),
    /// The netdev moves to the pod.
    "move" => moved::Move,
    /// Sysctls, addresses, routes and rules are set in the pod.
    "rail" => rail::Rail(Rail),
    /// The gateways are asked.
    "gateways" => gateway::Gateways(Gateways),
    /// The GIDs of the addresses are waited for.
    "gids" => gids::Gids(Gids),
    /// The P_Key is waited for.
    "pkey" => pkey::Pkey(Pkey),
    /// The device-info file is written.
    "device-info" => device_info::DeviceInfo(DeviceInfo),
}

impl Change {
    /// Its place among the steps of an ADD.
    pub fn rank(&self) -> usize {
        NAMES
            .iter()
            .position(|name| *name == self.name())
            .unwrap_or(NAMES.len())
    }
}
