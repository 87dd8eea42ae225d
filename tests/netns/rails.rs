//! What a pod gets: the right device, as a rail beside its other rails, and whatever happens to the
//! pod, the device is put right again.

mod device;
mod handback;
mod rdma;
mod refused;
mod routing;
mod unnumbered;
