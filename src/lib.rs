//! rail-cni: the CNI plugins of a GPU cluster's rails. `rail-cni` moves a device of the host into a pod and makes
//! it a rail; `rail-ipam` leases the rail's address. Each executable is a few lines over this crate.
//!
//! # The code, in reading order
//!
//! | module | what is there |
//! | --- | --- |
//! | [`cni`] | the protocol: [`cni::main`] is the whole life of a plugin's process, [`cni::Plugin`] its five verbs |
//! | `cni::args` | `CNI_*` variables, checked once; finding a plugin in `CNI_PATH` |
//! | `cni::keys` | keys in any letter case, and none twice |
//! | `cni::result` | results of all versions, from 0.1.0 to 1.1.0, read and written |
//! | `cni::error` | error codes; `fail!` and `failure!`, used everywhere |
//! | `cni::delegate` | calling an IPAM plugin, with a deadline |
//! | [`node`] | node.json, the only source of paths |
//! | `place` | is the run folder the host's? |
//! | [`cluster`] | networks of Services and pods, which no route of a rail may cover |
//! | [`attach`] | rail-cni: ADD, DEL, CHECK, STATUS, GC, each on one screen |
//! | `attach::config` | the network configuration, checked as far as it can be by itself |
//! | `attach::record` | what is on file of an attachment, and the locks |
//! | `attach::claim` | who has a device; what a lost DEL left is undone here |
//! | `attach::lost` | what a pod has of which nothing is on record |
//! | `attach::debt` | what is still owed of attachments whose device is home |
//! | `attach::device` | which device is meant, and whether it may be taken |
//! | `attach::order` | which PF is which rail, by other evidence than node.json |
//! | `attach::stacked` | who in another namespace uses it |
//! | `attach::userspace` | who has opened a device that has no netdev |
//! | `attach::pod` | the rail inside the pod: addresses, sysctls, routes, rules |
//! | `attach::vf` | settings that a PF makes for its VF |
//! | `attach::probe` | does the gateway answer? |
//! | `attach::rdma` | RDMA devices that go with the netdev |
//! | `attach::giveback` | the way home: for DEL, rollback, GC, `reap` and the next ADD alike |
//! | `attach::settings` | what else a pod can set on a netdev: taken down at ADD, put back there |
//! | `attach::check` | what CHECK compares |
//! | `attach::devinfo` | the device-info file |
//! | `attach::lint`, `attach::lint::plugin`, `attach::lint::ignore` | `rail-cni lint`: networks together, one plugin's configuration, and warnings that a file silences |
//! | `attach::cli` | the commands, and `rail-cni reap` |
//! | `attach::inventory`, `attach::status` | what this node has and who has it: `rail-cni status` |
//! | `attach::doctor` | `rail-cni doctor`: what a check is, and the answer |
//! | `attach::doctor::node`, `attach::doctor::rails`, `attach::doctor::pools`, `attach::doctor::runtimes` | the checks |
//! | `attach::doctor::networks`, `attach::doctor::routes` | the networks that are known without an API server, and what the rails' routes take away |
//! | [`ipam`] | rail-ipam: its verbs |
//! | `ipam::config` | the `ipam` section |
//! | `ipam::allocation` | a node's prefix in a pool, and which of its addresses pods can have |
//! | `ipam::lease` | leases: taking, taking over from the dead, giving back |
//! | `ipam::living` | addresses of pods whose leases somebody removed |
//! | `ipam::store` | allocations on disk |
//! | `ipam::cidrpool`, `ipam::import` | what NVIDIA's CIDRPool gives to each node; manifests into the store |
//! | `ipam::change` | a plan beside the store: what changes, which live leases stop it, and writing it |
//! | `ipam::report` | what a plan changes, told |
//! | `ipam::cli` | `rail-ipam import`, `show`, `release` |
//! | [`plan`] | the plan of a fabric: its pools, checked as a whole |
//! | `plan::scheme` | NVIDIA's Spectrum-X address formulas |
//! | `plan::refusal` | faults and doubts, told by cause |
//! | `plan::networks` | what of the cluster's own networks the routes cover |
//! | `plan::topology` | topology.json of spcx-gen and of NVIDIA AIR |
//! | `plan::fabric` | a fabric in a page of YAML |
//! | `plan::pattern` | names with numbers in them |
//! | `plan::cli` | `rail-ipam plan` |
//! | `plan::manifest` | CIDRPool manifests, read and written |
//! | `plan::netplan` | netplan files of hosts, written, and read: |
//! | `plan::netplan::files`, `plan::netplan::host`, `plan::netplan::pools` | whose they are; what in them is a rail; what rail it is |
//! | `plan::nads`, `plan::nics`, `plan::nvue`, `plan::csv` | what is written for Kubernetes, for those who hand out devices, for leaves, for people |
//! | `plan::out` | a folder of such files, and what an earlier plan left there |
//! | `plan::yaml` | YAML in one form |
//! | [`netlink`] | a synchronous socket that always ends in an answer or an error |
//! | `netlink::link` | netdevs, and the move between namespaces |
//! | `netlink::tunables`, `netlink::ethtool` | what else can be set on a netdev |
//! | `netlink::address`, `netlink::route`, `netlink::rule` | what a rail has in the pod |
//! | `netlink::filter`, `netlink::stacked` | what of the host sees its frames, and what is stacked on it |
//! | `netlink::neighbour` | who answers on a link |
//! | `netlink::vf` | the VFs of a PF |
//! | `netlink::rdma` | RDMA devices, which have a protocol of their own |
//! | [`netns`] | namespaces: opening, entering, telling one from another |
//! | `namespaces` | all there are on the node, one after the other |
//! | [`sysfs`] | PCI functions, PFs and VFs, auxiliary devices |
//! | [`document`] | files that people write, YAML or JSON, with the line of everything |
//! | [`files`] | folders without links, atomic writes, locks with a deadline |
//! | [`nearest`] | what a mistyped key may have meant |
//! | [`output`] | what the commands print: tables, JSON, exit status |
//! | [`log`] | stderr and a file |
//! | `watchdog` | ends a call that hangs |
//! | [`progress`] | a bar on a terminal |
//!
//! # An ADD
//!
//! 1. Environment and stdin are checked ([`cni`]), then node.json and the configuration; nothing is touched yet.
//! 2. The attachment is locked. What an earlier ADD of it left undone is undone.
//! 3. The device is found and locked. If a dead pod had it, it is put right first; if a living one, error 11.
//! 4. It is compared with rail, policy, MTU and what the host needs; VF and RDMA plans are made.
//! 5. The record goes on file, with what the device was: name, altnames, MTU, MAC, VF settings, all other settings.
//! 6. The IPAM is asked for the address; rail-ipam writes a lease. The record learns addresses, routes and rules.
//! 7. The PF sets VF properties, RDMA devices move. One netlink message moves the device, with name, MTU and MAC.
//! 8. In the pod: sysctls, addresses, link up, routes, rules; the gateway answers. Then the device-info file.
//! 9. The record says `attached`, and the result is printed. If that fails, or anything since 5: the way of DEL.
//!
//! # A DEL
//!
//! 1. Needs only the key, container and interface; a configuration that is wrong by now is read leniently.
//! 2. The attachment is locked, which waits for an ADD that its runtime gave up. The record is read, or its copy.
//! 3. If the namespace is still the recorded one: rules go, RDMA devices and the device come home in one message.
//! 4. Otherwise the device is looked for on the host, under whatever name the kernel gave it.
//! 5. VF settings, name, MTU, MAC, altnames and the rest are set back, where asked for after a reset of the function.
//! 6. Every step is tried. With the device on the host the record becomes a debt, and the device is free: what could not
//!    be set back, the device-info file and the IPAM's DEL are owed, and tried now.
//! 7. What fails stays owed, for later calls. DEL fails only where the device is still in the pod.
//! 8. The time of the DEL stays in the attachment's lock file: an ADD that began before it must not go on.
//!
//! # Where the state is
//!
//! | path | owner |
//! | --- | --- |
//! | `/etc/rail-cni/node.json` | the operator; read by [`node`] |
//! | `/var/lib/rail-cni/store/NODE/POOL.json`, `leaf-ports` | `ipam::store`; written by `rail-ipam import` and `plan` |
//! | `/run/rail-cni/leases/NODE/POOL/ADDRESS@KEY.json`, `lock` | `ipam::lease` |
//! | `/run/rail-cni/attachments/CONTAINER:IFNAME:DEVICE.json` | `attach::record` |
//! | `/run/rail-cni/debts/`, the same names | `attach::record`, `attach::debt`: records whose device is home |
//! | `/run/rail-cni/locks/` | `attach::record`: `attachment-` with the time of the last DEL, `device-` with a copy of the record, `pf-` |
//!
//! rail-cni never reads a lease and rail-ipam never reads a record: between them is only the CNI protocol.
//! `rail-cni status` and `doctor`, for people, look at both.

pub mod attach;
pub mod cluster;
pub mod cni;
pub mod document;
pub mod files;
pub mod ipam;
pub mod log;
mod namespaces;
pub mod nearest;
pub mod netlink;
pub mod netns;
pub mod node;
pub mod output;
mod place;
pub mod plan;
pub mod progress;
pub mod sysfs;
mod watchdog;
