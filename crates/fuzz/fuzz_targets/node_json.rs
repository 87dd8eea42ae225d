//! `rail_fuzz::TARGETS` says what it is.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rail_fuzz::run("node_json", data));
