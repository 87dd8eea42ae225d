//! `bpf-link xdp|tcx NETDEV` holds a program on NETDEV by a bpf_link until it is ended.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[path = "../bpf.rs"]
mod bpf;

use bpf::Hook;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [hook, netdev] = &arguments[..] else {
        panic!("usage: bpf-link xdp|tcx NETDEV")
    };
    let hook = if hook == "xdp" { Hook::Xdp } else { Hook::Tcx };
    let _held = bpf::hold(netdev, hook).unwrap();
    println!("held");
    loop {
        std::thread::park();
    }
}
