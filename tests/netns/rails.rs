//! The rail of a pod: the right device, beside its other rails, and put right again whatever
//! happens to the pod.

mod device;
mod handback;
mod rdma;
mod reattach;
mod refused;
mod routing;
mod unnumbered;
