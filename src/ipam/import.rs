//! `rail-ipam import`: CIDRPool manifests into the store.
