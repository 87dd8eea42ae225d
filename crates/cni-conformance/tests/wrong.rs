//! No check is one that cannot fail: for each of them there is a plugin that does one thing wrong,
//! and fails it. It is a shell script before one of examples/right.rs, which fail none.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by a panic"
)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cni_conformance::check::{Harm, Level};
use cni_conformance::description::VERSIONS;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// What comes before each wrong thing. `take` reads stdin, except where nothing may come, and
/// `real` is the plugin with what was read.
const HEAD: &str = r#"#!/bin/sh
is() { [ "$CNI_COMMAND" = "$1" ]; }
take() { case $CNI_COMMAND in '') ;; VERSION) input=$(timeout 2 cat) ;; *) input=$(cat) ;; esac; }
has() { case $input in *"$1"*) return 0 ;; esac; return 1; }
real() { printf '%s' "$input" | "$REAL"; }
ok() { exit 0; }
bad() { echo '{"cniVersion":"'${2:-1.1.0}'","code":'$1',"msg":"wrong"}'; exit 1; }
# In the version of the configuration.
version() { take; printf '%s' "$input" | sed -n 's/.*"cniVersion":"\([^"]*\)".*/\1/p'; }
stray() { ip link add stray type veth peer name stray2; }
full() { ! echo x >/run/probe-$$; s=$?; rm -f /run/probe-$$; return $s; }
alone() { mkdir /run/busy 2>/dev/null || bad 11; sleep 0.5; rmdir /run/busy; }
# What cannot be told is undone.
told() { trap '' PIPE; printf '%s\n' "$1" || { CNI_COMMAND=DEL real >/dev/null; exit 5; }; exit $s; }
changed() { r=$(real); s=$?; told "$(printf %s "$r" | sed "$1")"; }
edited() { r=$(real); s=$?; [ $s = 0 ] && r=$(printf %s "$r" | jq -c "$1"); told "$r"; }
# Whether nothing is wrong with the configuration, and with the call: what is wrong with those is asked by other checks.
sane() { [ "${input+x}" ] || take; like "$input" '{*}' && has '"name":"conformance"' && has '"cniVersion":"1.1.0"'; }
like() { case $1 in $2) return 0 ;; esac; return 1; }
well() { sane && [ "$CNI_PATH" ] && like "$CNI_CONTAINERID" 'c[0-9]*' && like "$CNI_IFNAME" 'net[0-9]*' && { like "$CNI_NETNS" '/run/netns/*' || { [ -z "$CNI_NETNS" ] && is DEL; }; }; }
in_pod() { ip -n "${CNI_NETNS##*/}" "$@" >/dev/null 2>&1; }
gone() { well && in_pod link show lo && ! in_pod link show "$CNI_IFNAME"; }
# Files of faults, which are those of one check and no part of the host.
own=/dev/shm/conformance/bin/own; mkdir -p $own
shown() { ip -n "${CNI_NETNS##*/}" "$@" 2>/dev/null; }
"#;

const TAIL: &str = r#"
[ "${input+x}" ] && { real; exit; }
exec "$REAL" "$@"
"#;

type Fault = (&'static str, &'static str, &'static [&'static str]);

/// A check, what a plugin does that fails it, and the other checks that this fails of necessity.
/// Some have more than one. With `ipam:` it is an IPAM plugin.
const WRONG: &[Fault] = &[
    ("add_succeeds", r#"is ADD && echo hello"#, &[]),
    (
        "success_is_silent",
        "take; is DEL && { real && echo '{}'; exit; }",
        &[],
    ),
    (
        "failure_has_a_status",
        r#"take; is ADD && [ "$input" = "{" ] && { (bad 6); ok; }"#,
        &[
            "garbage_is_error_6",
            "garbage_changes_nothing",
            "container_id_is_judged_first",
        ],
    ),
    (
        "failure_is_one_error",
        r#"take; is ADD && [ "$input" = "{" ] && exit 1"#,
        &["garbage_is_error_6", "container_id_is_judged_first"],
    ),
    (
        "error_has_version",
        r#"take; is ADD && has '"a b"' && { echo '{"code":7,"msg":"wrong"}'; exit 1; }"#,
        &[],
    ),
    (
        "stderr_is_not_needed",
        "is ADD && [ \"$(readlink /proc/$$/fd/2)\" = /dev/null ] && exit 3",
        &[],
    ),
    (
        "lost_result_is_undone",
        "take; is ADD && { r=$(real); s=$?; printf '%s\\n' \"$r\"; exit $s; }",
        &[],
    ),
    ("no_child_is_left", "is ADD && { sleep 20 & }", &[]),
    (
        "stdin_may_be_a_file",
        "is ADD && case $(readlink /proc/$$/fd/0) in */conf.json) bad 6 ;; esac",
        &[],
    ),
    (
        "stdin_may_be_large",
        "take; [ ${#input} -gt 20000 ] && bad 6",
        &[],
    ),
    (
        "environment_may_be_empty",
        "is ADD && [ \"$HOME\" = /nonexistent ] && bad 999",
        &[],
    ),
    (
        "no_verb_tells_versions",
        "[ -z \"$CNI_COMMAND\" ] && bad 4",
        &[],
    ),
    ("arguments_have_no_effect", "[ \"$1\" ] && bad 4", &[]),
    (
        "missing_variables_are_refused",
        r#"is ADD && [ -z "${CNI_IFNAME+x}" ] && [ "$CNI_NETNS" ] && bad 7"#,
        &[],
    ),
    (
        "error_4_names_variables",
        r#"is ADD && [ -z "${CNI_IFNAME+x}" ] && [ "$CNI_NETNS" ] && bad 4 "$(version)""#,
        &[],
    ),
    (
        "empty_variables_are_missing",
        "is DEL && [ \"${CNI_IFNAME+x}\" ] && [ -z \"$CNI_IFNAME\" ] && bad 999",
        &[],
    ),
    (
        "all_missing_variables_are_named",
        r#"is ADD && [ -z "$CNI_NETNS" ] && [ -z "$CNI_IFNAME" ] && bad 4"#,
        &["container_id_is_judged_first"],
    ),
    (
        "gc_requires_cni_path",
        r#"is GC && [ -z "$CNI_PATH" ] && ok"#,
        &[],
    ),
    (
        "container_id_has_its_form",
        "[ \"$CNI_CONTAINERID\" = é ] && bad 7",
        &[],
    ),
    (
        "any_container_id_is_served",
        "case $CNI_CONTAINERID in *..*) bad 4 ;; esac",
        &[],
    ),
    (
        "container_id_is_judged_first",
        "[ \"$CNI_CONTAINERID\" = 'a b' ] && [ -z \"$CNI_NETNS\" ] && bad 4",
        &[],
    ),
    (
        "ifname_has_its_form",
        "[ \"$CNI_IFNAME\" = a:b ] && bad 7",
        &[],
    ),
    (
        "status_needs_no_container",
        r#"is STATUS && [ -z "$CNI_CONTAINERID" ] && bad 4"#,
        &[],
    ),
    (
        "gc_needs_no_container",
        r#"is GC && [ -z "$CNI_CONTAINERID" ] && bad 4"#,
        &[],
    ),
    ("unknown_verb_is_refused", "is add && ok", &[]),
    (
        "netns_may_be_any_path",
        "case $CNI_NETNS in */link) bad 3 ;; esac",
        &[],
    ),
    (
        "own_netns_is_refused",
        "case $CNI_NETNS in /proc/self*) bad 7 ;; esac",
        &[],
    ),
    (
        "own_netns_is_refused_first",
        r#"[ "$CNI_NETNS" = /proc/self/ns/net ] && is ADD && stray"#,
        &[],
    ),
    (
        "what_is_no_netns_is_refused",
        "[ \"$CNI_NETNS\" = /dev/null ] && stray",
        &[],
    ),
    (
        "cni_args_are_read_leniently",
        "case $CNI_ARGS in *';;'*) bad 7 ;; esac",
        &[],
    ),
    (
        "garbage_is_error_6",
        r#"take; [ "$input" = 7 ] && bad 7"#,
        &[],
    ),
    (
        "garbage_changes_nothing",
        "take; is ADD && [ \"$input\" = nonsense ] && stray",
        &[],
    ),
    (
        "wrong_types_are_refused",
        "take; has '\"args\":true' && kill -SEGV $$",
        &[],
    ),
    ("network_has_a_name", "take; has '\"a/b\"' && bad 6", &[]),
    (
        "unknown_version_is_error_1",
        "take; has 9.9.9 && ! has prevResult && bad 7",
        &[],
    ),
    (
        "error_1_names_versions",
        "take; has 9.9.9 && ! has prevResult && bad 1",
        &[],
    ),
    (
        "no_version_is_the_first",
        r#"take; is ADD && has '"name":"conformance"' && ! has cniVersion && ! has CNIVERSION && like "$CNI_CONTAINERID" 'c[0-9]*' && bad 1"#,
        &[],
    ),
    (
        "versions_are_served",
        "take; is ADD && has '\"0.3.1\"' && bad 1",
        &[],
    ),
    (
        "verbs_need_their_version",
        "take; is GC && has '\"1.0.0\"' && ok",
        &[],
    ),
    (
        "foreign_keys_are_accepted",
        "take; has disableGC && bad 2",
        &[],
    ),
    (
        "letter_case_has_no_meaning",
        "take; has '\"CNIVERSION\"' && bad 7",
        &[],
    ),
    ("null_is_absent", "take; has '\"args\":null' && bad 7", &[]),
    (
        "numbers_may_be_floats_of_go",
        "take; has 1e-7 && bad 6",
        &[],
    ),
    (
        "ipam_type_is_no_path",
        r#"take; is ADD && has '"type":"./never"' && sh /dev/shm/conformance/bin/never"#,
        &[],
    ),
    (
        "del_takes_another_configuration",
        "take; is DEL && has '\"cniVersion\":\"0.4.0\"' && bad 1",
        &[],
    ),
    (
        "del_takes_another_configuration",
        "take; has '{\"conformance\":1}' && touch $own/args; is DEL && [ -e $own/args ] && ! has '{\"conformance\":1}' && bad 7",
        &[],
    ),
    (
        "version_lists_versions",
        r#"take; is VERSION && edited '.supportedVersions = "1.1.0"'"#,
        &[],
    ),
    (
        "version_answers_in_the_version_asked",
        r#"take; is VERSION && edited '.cniVersion = "1.1.0"'"#,
        &[],
    ),
    (
        "version_takes_any_stdin",
        "is VERSION && { take; [ \"$input\" = x ] && bad 6; }",
        &[],
    ),
    ("version_does_not_wait", "is VERSION && input=$(cat)", &[]),
    (
        "version_needs_no_variable",
        "is VERSION && [ -z \"$CNI_PATH\" ] && bad 4",
        &[],
    ),
    (
        "version_ignores_variables",
        r#"is VERSION && [ "$CNI_IFNAME" = /// ] && bad 4"#,
        &[],
    ),
    ("version_changes_nothing", "is VERSION && stray", &[]),
    (
        "interface_is_made",
        r#"take; is ADD && { real || exit; in_pod link set net1 down name gone1; ok; }"#,
        &[
            "interface_has_its_name",
            "check_after_add",
            "result_matches_the_pod",
        ],
    ),
    (
        "interface_has_its_name",
        "is ADD && [ \"$CNI_IFNAME\" = a ] && export CNI_IFNAME=b",
        &[],
    ),
    (
        "taken_name_is_refused",
        r#"take; is ADD && in_pod link show other && { r=$(real); [ "$r" ] && echo '{"cniVersion":"1.1.0"}'; ok; }"#,
        &[],
    ),
    (
        "taken_name_changes_nothing",
        r#"was=$own/$CNI_CONTAINERID; is DEL && rm -f "$was"; is ADD && [ "$CNI_CONTAINERID" ] && { [ ! -e "$was" ] && in_pod link show $CNI_IFNAME && stray; touch "$was"; }"#,
        &[],
    ),
    (
        "second_add_is_refused",
        r#"is ADD && [ "$CNI_IFNAME" ] && in_pod link show $CNI_IFNAME && ok"#,
        &["taken_name_is_refused"],
    ),
    (
        "second_add_changes_nothing",
        r#"was=$own/$CNI_CONTAINERID; is DEL && rm -f "$was"; is ADD && [ "$CNI_CONTAINERID" ] && { [ -e "$was" ] && [ "$CNI_IFNAME" ] && in_pod link show $CNI_IFNAME && in_pod link add stray type veth peer name stray2 && bad 7; touch "$was"; }"#,
        &[],
    ),
    (
        "ipam:second_lease_is_refused",
        r#"had="$own/$CNI_CONTAINERID"; is DEL && rm -f "$had"; is ADD && [ "$CNI_CONTAINERID" ] && { [ -e "$had" ] && export CNI_CONTAINERID="$CNI_CONTAINERID.2"; touch "$had"; }"#,
        &[],
    ),
    (
        "previous_result_is_kept",
        "take; is ADD && changed s/conformance0/other/",
        &[],
    ),
    (
        "host_is_not_changed",
        "is ADD && [ $CNI_CONTAINERID = c0 ] && ip link set bystander mtu 1400",
        &[],
    ),
    (
        "life_leaves_nothing",
        r#"well && is DEL && [ $CNI_CONTAINERID = c0 ] && has '"prevResult":{' && stray"#,
        &[
            "first_life_leaves_nothing",
            "del_needs_no_arguments",
            "del_takes_another_configuration",
            "add_on_a_full_disk",
            "del_on_a_full_disk",
        ],
    ),
    (
        "first_life_leaves_nothing",
        "well && is ADD && touch /run/left",
        &[],
    ),
    (
        "pod_is_as_before",
        "take; is DEL && in_pod link show lo && { real || exit; umount \"$CNI_NETNS\"; rm \"$CNI_NETNS\"; ok; }",
        &[
            "del_keeps_other_attachments",
            "add_after_del_is_as_the_first",
            "add_on_a_full_disk",
        ],
    ),
    (
        "pod_is_as_before",
        "is DEL && in_pod link add stray type veth peer name stray2",
        &[],
    ),
    (
        "requested_mac_is_set",
        "take; is ADD && input=$(printf %s \"$input\" | sed s/00:77/00:78/)",
        &[],
    ),
    (
        "dns_of_configuration_is_returned",
        r#"take; is ADD && has example.net && changed s/10.9.0.53/10.9.0.54/"#,
        &[],
    ),
    (
        "no_default_route_is_added",
        r#"take; is ADD && { real || exit; in_pod route add default dev net1; ok; }"#,
        &["check_after_add"],
    ),
    (
        "own_interface_is_listed",
        r#"take; is ADD && edited 'if .interfaces then .interfaces |= map(select(.name != "net1")) | .ips |= map(if .address | startswith("10.9.0.") then del(.interface) else . end) else . end'"#,
        &["check_after_add"],
    ),
    (
        "interfaces_have_names",
        r#"take; is ADD && edited 'if .interfaces then .interfaces += [{name: ""}] else . end'"#,
        &[],
    ),
    (
        "sandbox_is_the_netns",
        r#"take; is ADD && edited '(.interfaces[]? | select(.name == "net1") | .sandbox) |= "/elsewhere"'"#,
        &["check_after_add"],
    ),
    (
        "addresses_have_a_prefix",
        r#"take; is ADD && edited '(.ips[]? | select(.address | startswith("10.9.0.")) | .address) |= split("/")[0]'"#,
        &["check_after_add"],
    ),
    (
        "indexes_are_in_range",
        r#"take; is ADD && changed 's/"interface": *0/"interface":9/'"#,
        &["check_misses_the_address", "check_misses_a_route"],
    ),
    (
        "numbers_are_integers",
        r#"take; is ADD && edited 'if .interfaces[0].mtu then .interfaces[0].mtu |= tostring else . end'"#,
        &["check_after_add"],
    ),
    (
        "mac_is_that_of_the_kernel",
        "take; is ADD && changed 's/\"mac\": *\"[^\"]*\"/\"mac\":\"02-00-00-00-00-01\"/'",
        &["check_after_add"],
    ),
    (
        "result_matches_the_pod",
        "take; is ADD && changed 's#\"address\": *\"10[.]9[.]0[.][^\"]*\"#\"address\":\"10.250.0.2/24\"#'",
        &["check_after_add", "previous_result_is_kept"],
    ),
    (
        "mtu_is_told",
        r#"take; is ADD && edited 'del(.interfaces[]?.mtu)'"#,
        &["check_sees_another_mtu"],
    ),
    (
        "told_mtu_is_true",
        r#"take; is ADD && changed 's/"mtu": *[0-9]*/"mtu":9/'"#,
        &["check_after_add"],
    ),
    (
        "result_of_1_0_has_no_later_keys",
        "take; is ADD && changed 's/\"mac\"/\"mtu\":9,\"mac\"/'",
        &[],
    ),
    (
        "result_of_0_4_has_families",
        "take; is ADD && changed 's/\"version\": *\"4\"/\"version\":\"5\"/'",
        &[],
    ),
    (
        "result_of_0_2_is_by_family",
        "take; is ADD && changed s/ip4/ip5/",
        &[],
    ),
    (
        "previous_result_of_another_version",
        "take; is ADD && has '\"version\":\"4\"' && bad 6",
        &[],
    ),
    (
        "ipam:ipam_result_has_no_interface",
        "take; is ADD && changed 's/\"ips\"/\"interfaces\":[{\"name\":\"x\"}],\"ips\"/'",
        &[],
    ),
    (
        "ipam:ipam_result_has_an_address",
        r#"take; is ADD && edited 'if .ips then .ips = [] else . end'"#,
        &["check_after_add"],
    ),
    (
        "del_after_add",
        r#"take; is DEL && in_pod link show net1 && { real >/dev/null; bad 999; }"#,
        &[],
    ),
    (
        "del_without_netns",
        r#"take; is DEL && [ -z "$CNI_NETNS" ] && { real >/dev/null; bad 4; }"#,
        &[],
    ),
    (
        "ipam:del_without_netns_releases",
        r#"is DEL && [ -z "$CNI_NETNS" ] && ok"#,
        &[],
    ),
    (
        "del_after_netns_is_gone",
        r#"take; is DEL && [ "$CNI_NETNS" ] && [ ! -e "$CNI_NETNS" ] && { real >/dev/null; bad 999; }"#,
        &[],
    ),
    (
        "ipam:ipam_del_after_netns_is_gone",
        r#"take; is DEL && [ "$CNI_NETNS" ] && [ ! -e "$CNI_NETNS" ] && { real >/dev/null; bad 999; }"#,
        &[],
    ),
    (
        "del_after_netns_is_gone_releases",
        r#"is DEL && [ "$CNI_NETNS" ] && [ ! -e "$CNI_NETNS" ] && ok"#,
        &[],
    ),
    (
        "del_of_no_netns",
        r#"is DEL && [ -f "$CNI_NETNS" ] && [ "$(stat -fc %T "$CNI_NETNS")" != nsfs ] && bad 999"#,
        &[],
    ),
    (
        "del_after_interface_is_gone",
        r#"is DEL && gone && bad 999"#,
        &["del_after_device_is_gone", "del_before_add", "del_twice"],
    ),
    (
        "del_after_interface_is_gone_releases",
        r#"is DEL && gone && ok"#,
        &["del_after_device_is_gone_releases"],
    ),
    (
        "del_after_device_is_gone",
        r#"is DEL && gone && bad 999"#,
        &["del_after_interface_is_gone", "del_before_add", "del_twice"],
    ),
    (
        "del_after_device_is_gone_releases",
        r#"is DEL && gone && ok"#,
        &["del_after_interface_is_gone_releases"],
    ),
    (
        "del_before_add",
        r#"is DEL && gone && bad 999"#,
        &[
            "del_after_interface_is_gone",
            "del_after_device_is_gone",
            "del_twice",
        ],
    ),
    (
        "del_before_add_changes_nothing",
        r#"is DEL && ! in_pod link show net1 && stray"#,
        &[],
    ),
    (
        "del_twice",
        r#"is DEL && gone && bad 999"#,
        &[
            "del_after_interface_is_gone",
            "del_after_device_is_gone",
            "del_before_add",
        ],
    ),
    (
        "del_twice_after_netns_is_gone",
        r#"is DEL && [ "$CNI_NETNS" ] && [ ! -e "$CNI_NETNS" ] && { [ -e /run/twice-$CNI_CONTAINERID ] && bad 999; touch /run/twice-$CNI_CONTAINERID; }"#,
        &["del_after_netns_is_gone_releases"],
    ),
    (
        "del_needs_no_previous_result",
        "well && is DEL && ! has prevResult && bad 7",
        &["del_before_add", "add_on_a_full_disk"],
    ),
    (
        "del_without_previous_result_releases",
        "well && is DEL && ! has prevResult && ok",
        &["add_on_a_full_disk"],
    ),
    (
        "del_takes_an_empty_previous_result",
        r#"take; is DEL && has '"prevResult":{}' && bad 7"#,
        &[],
    ),
    (
        "del_takes_a_previous_result_of_another_version",
        r#"sane && is DEL && has '"ip4"' && bad 7"#,
        &[],
    ),
    (
        "del_takes_a_previous_result_of_no_version",
        "take; is DEL && has 9.9.9 && bad 7",
        &[],
    ),
    (
        "del_takes_an_unreadable_previous_result",
        r#"take; is DEL && has '"prevResult":[' && bad 7"#,
        &[],
    ),
    (
        "del_needs_no_arguments",
        "is DEL && [ -z \"$CNI_ARGS\" ] && bad 7",
        &[],
    ),
    (
        "del_needs_no_arguments",
        "take; has runtimeConfig && touch $own/args; is DEL && [ -e $own/args ] && ! has runtimeConfig && bad 7",
        &[],
    ),
    (
        "del_errors_are_no_success",
        "well && is DEL && echo '{\"code\":999,\"msg\":\"link not found\"}' && exit 1",
        &["del_after_add", "del_before_add"],
    ),
    (
        "del_of_one_of_two_interfaces",
        "is DEL && in_pod link show net2 && bad 999",
        &[],
    ),
    (
        "del_keeps_other_attachments",
        "is DEL && [ $CNI_CONTAINERID = c0 ] && in_pod link del net2",
        &[],
    ),
    (
        "del_of_another_container_takes_nothing",
        "is DEL && [ $CNI_CONTAINERID = other ] && ip -n c0 link set net1 mtu 1300",
        &[],
    ),
    (
        "add_after_del_is_as_the_first",
        "is ADD && [ -e $own/once ] && bad 999; is DEL && touch $own/once",
        &["results_of_older_ipams_are_read", "add_on_a_full_disk"],
    ),
    ("check_after_add", r#"well && is CHECK && bad 999"#, &[]),
    (
        "check_needs_a_previous_result",
        r#"well && is CHECK && ! has '"prevResult":{' && ok"#,
        &[],
    ),
    (
        "check_misses_the_interface",
        r#"well && is CHECK && ! in_pod link show net1 && ok"#,
        &["check_after_del"],
    ),
    (
        "check_misses_the_address",
        r#"is CHECK && in_pod link show net1 && ! shown addr show net1 | grep -q 'inet ' && ok"#,
        &[],
    ),
    (
        "check_misses_a_route",
        r#"is CHECK && shown addr show net1 | grep -q 'inet 10.9' && shown link show net1 | grep -q '[<,]UP' && ! shown route | grep -q 10.8 && ok"#,
        &[],
    ),
    (
        "check_sees_another_mac",
        r#"is CHECK && shown link show net1 | grep -q 00:99 && ok"#,
        &[],
    ),
    (
        "check_sees_another_mtu",
        r#"is CHECK && shown link show net1 | grep -q 'mtu 1300' && ok"#,
        &[],
    ),
    (
        "check_sees_that_it_is_down",
        r#"is CHECK && in_pod link show net1 && ! shown link show net1 | grep -q '[<,]UP' && ok"#,
        &[],
    ),
    (
        "check_after_del",
        r#"is DEL && touch $own/deleted; well && is CHECK && [ -e $own/deleted ] && ! in_pod link show net1 && ok"#,
        &[],
    ),
    (
        "check_allows_more",
        "is CHECK && ip -n c0 addr show net1 | grep -q 10.222 && bad 100",
        &[],
    ),
    (
        "check_finds_a_moved_route",
        "well && is CHECK && [ \"$(shown route show table 188)\" ] && bad 100",
        &[],
    ),
    (
        "check_changes_nothing",
        "is CHECK && in_pod link add s$$ type veth peer name t$$",
        &[],
    ),
    (
        "check_takes_another_path",
        "is CHECK && case $CNI_NETNS in */./*) bad 100 ;; esac",
        &[],
    ),
    (
        "status_of_a_node_that_is_ready",
        r#"sane && is STATUS && bad 50"#,
        &[],
    ),
    (
        "status_calls_the_ipam",
        r#"take; is STATUS && has stand-in && ok"#,
        &[],
    ),
    (
        "status_tells_errors_of_the_ipam",
        r#"take; is STATUS && has stand-in && { real >/dev/null; ok; }"#,
        &[],
    ),
    (
        "status_keeps_errors_of_the_ipam",
        r#"take; is STATUS && has stand-in && { real >/dev/null || bad 52; ok; }"#,
        &[],
    ),
    (
        "status_stops_no_add",
        "is STATUS && touch $own/drained; is ADD && [ -e $own/drained ] && bad 50",
        &["status_waits_for_no_add"],
    ),
    ("status_changes_nothing", "sane && is STATUS && stray", &[]),
    (
        "status_waits_for_no_add",
        r#"is ADD && { touch /run/adds; take; sleep 2; real; s=$?; rm /run/adds; exit $s; }; is STATUS && { take; sleep 0.5; [ -e /run/adds ] && bad 50; }"#,
        &[],
    ),
    (
        "gc_succeeds",
        r#"take; is GC && has '"c0"' && { real >/dev/null; bad 999; }"#,
        &[],
    ),
    (
        "gc_keeps_what_is_listed",
        "sane && is GC && rm -rf /dev/shm/conformance/run/leases/conformance",
        &[],
    ),
    (
        "gc_releases_what_is_not_listed",
        r#"take; is GC && has '"c1"' && ! has '"c2"' && ok"#,
        &[],
    ),
    (
        "gc_keeps_other_networks",
        r#"take; is GC && has '"name":"' && ! has '"name":"conformance"' && rm -rf /dev/shm/conformance/run/leases"#,
        &[],
    ),
    (
        "gc_of_nothing_succeeds",
        "take; is GC && has attachments\\\":null && bad 7",
        &[],
    ),
    (
        "gc_calls_the_ipam",
        r#"take; is GC && has stand-in && ok"#,
        &[],
    ),
    (
        "gc_gives_the_ipam_the_list",
        r#"take; is GC && has stand-in && input=$(printf %s "$input" | sed 's,dev/[a-z-]*attachments,dev/at,g')"#,
        &[],
    ),
    (
        "gc_tells_errors_of_the_ipam",
        r#"take; is GC && has stand-in && { real >/dev/null; ok; }"#,
        &[],
    ),
    (
        "gc_then_del",
        "is GC && touch $own/gone; is DEL && [ -e $own/gone ] && bad 999",
        &[],
    ),
    (
        "failed_ipam_is_told",
        r#"take; is ADD && has stand-in && { r=$(real); s=$?; [ $s = 0 ] || bad 7; echo "$r"; ok; }"#,
        &[],
    ),
    (
        "failed_ipam_is_undone",
        r#"take; is ADD && has stand-in && { r=$(real); s=$?; case $r in *nothing\ left*) stray ;; esac; echo "$r"; exit $s; }"#,
        &[],
    ),
    (
        "failed_ipam_is_released",
        r#"take; is ADD && grep -q 'nothing left' /dev/shm/conformance/bin/stand-in && { printf %s "$input" | /dev/shm/conformance/bin/stand-in; exit; }"#,
        &[],
    ),
    (
        "garbage_of_the_ipam_is_an_error",
        r#"take; is ADD && grep -q 'echo garbage' /dev/shm/conformance/bin/stand-in && { echo '{}'; ok; }"#,
        &[],
    ),
    (
        "garbage_of_the_ipam_is_undone",
        r#"take; is ADD && [ $CNI_CONTAINERID = c0 ] && grep -q 'echo garbage' /dev/shm/conformance/bin/stand-in && { stray; real; exit 1; }"#,
        &[],
    ),
    (
        "late_failure_is_undone",
        r#"take; is ADD && [ $CNI_CONTAINERID = c0 ] && grep -q 192.0.2.77 /dev/shm/conformance/bin/stand-in && stray"#,
        &[],
    ),
    (
        "late_failure_releases_the_address",
        r#"take; is ADD && grep -q 192.0.2.77 /dev/shm/conformance/bin/stand-in && { printf %s "$input" | /dev/shm/conformance/bin/stand-in >/dev/null; bad 999; }"#,
        &[],
    ),
    (
        "absent_ipam_is_an_error",
        "take; is ADD && has '\"absent\"' && echo '{}' && ok",
        &[],
    ),
    (
        "absent_ipam_is_undone",
        "take; is ADD && has '\"absent\"' && stray",
        &[],
    ),
    (
        "ipam_is_taken_from_cni_path",
        r#"is ADD && export CNI_PATH=${PATH%%:*}:$CNI_PATH"#,
        &["ipam_gets_the_same_variables"],
    ),
    (
        "ipam_gets_the_same_variables",
        r#"is ADD && export CNI_ARGS="$CNI_ARGS;x=1""#,
        &[],
    ),
    (
        "ipam_gets_the_same_configuration",
        r#"take; is ADD && has stand-in && input=$(printf %s "$input" | jq -c '.extra = 1')"#,
        &[],
    ),
    (
        "stderr_of_the_ipam_is_passed_on",
        "is ADD && exec 2>/dev/null",
        &[],
    ),
    (
        "del_calls_the_ipam",
        r#"take; is DEL && has stand-in && [ "$CNI_NETNS" ] && { in_pod link del net1; ok; }"#,
        &[],
    ),
    (
        "del_without_netns_calls_the_ipam",
        r#"take; is DEL && has stand-in && [ -z "$CNI_NETNS" ] && ok"#,
        &[],
    ),
    (
        "check_calls_the_ipam",
        r#"take; is CHECK && has stand-in && ok"#,
        &[],
    ),
    (
        "check_tells_errors_of_the_ipam",
        r#"take; is CHECK && has stand-in && { real >/dev/null; ok; }"#,
        &[],
    ),
    (
        "del_removes_the_interface_first",
        "take; is DEL && has stand-in && printf %s \"$input\" | /dev/shm/conformance/bin/stand-in",
        &[],
    ),
    (
        "del_continues_after_the_ipam_failed",
        r#"take; is DEL && has stand-in && { printf %s "$input" | /dev/shm/conformance/bin/stand-in || exit; }"#,
        &["del_removes_the_interface_first"],
    ),
    (
        "del_tells_errors_of_the_ipam",
        r#"take; is DEL && has stand-in && { real >/dev/null; ok; }"#,
        &[],
    ),
    (
        "results_of_older_ipams_are_read",
        "is ADD && [ $CNI_CONTAINERID = c1 ] && bad 999",
        &[],
    ),
    (
        "indexes_of_the_ipam_are_replaced",
        "take; is ADD && has stand-in && changed 's/\"interface\": *0/\"interface\":7/'",
        &[],
    ),
    (
        "two_addresses_fit_or_are_refused",
        "take; is ADD && has '\"0.2.0\"' && echo '{\"cniVersion\":\"0.2.0\",\"ip4\":{\"ip\":\"10.77.0.2/24\"}}' && ok",
        &[],
    ),
    (
        "ipam:requested_address_is_leased",
        "take; is ADD && has runtimeConfig && changed 's#\"address\": *\"[^\"]*\"#\"address\":\"10.9.0.200/24\"#'",
        &[],
    ),
    ("adds_at_the_same_time", "take; is ADD && alone", &[]),
    (
        "adds_at_the_same_time_leave_nothing",
        r#"take; is ADD && { mkdir /run/busy 2>/dev/null && mine=1 || touch /run/left-$$; sleep 0.5; real; s=$?; [ "$mine" ] && rmdir /run/busy; exit $s; }"#,
        &[],
    ),
    (
        "ipam:addresses_are_had_by_one",
        r#"take; is ADD && { mkdir /run/busy 2>/dev/null && { sleep 0.5; real; s=$?; rmdir /run/busy; exit $s; }; changed 's,"address": *"[^"]*","address":"10.9.0.200/24",'; }"#,
        &[],
    ),
    (
        "ipam:leases_differ",
        r#"take; is ADD && changed 's,"address": *"[^"]*","address":"10.9.0.200/24",'"#,
        &["requested_address_is_leased"],
    ),
    (
        "adds_of_one_pod_at_the_same_time",
        "take; is ADD && alone",
        &[],
    ),
    ("dels_at_the_same_time", "take; is DEL && alone", &[]),
    (
        "add_and_del_at_the_same_time",
        // Whichever is first: DEL comes in the middle of ADD.
        r#"is ADD && { touch $own/adds; take; sleep 1; real; s=$?; rm -f $own/adds; exit $s; }; is DEL && { sleep 0.4; [ -e $own/adds ] && stray; }"#,
        &[],
    ),
    ("add_on_a_full_disk", "is ADD && full && kill -KILL $$", &[]),
    ("del_on_a_full_disk", "is DEL && full && bad 999", &[]),
];

/// The suite.
fn suite() -> Command {
    Command::new(env!("CARGO_BIN_EXE_cni-conformance"))
}

fn skip(test: &str, reason: &str) {
    eprintln!("skipped {test}: {reason}");
    if let Some(path) = std::env::var_os("CONFORMANCE_TEST_SKIPS") {
        let mut file = fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        std::io::Write::write_all(&mut file, format!("{test}: {reason}\n").as_bytes()).unwrap();
    }
}

/// Directory of the two plugins that are right. A skip if this machine makes no namespaces.
fn plugins(test: &str) -> Option<PathBuf> {
    let program = example();
    assert!(
        program.is_file(),
        "{}: cargo build --examples builds it",
        program.display()
    );
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("right");
    fs::create_dir_all(&directory).unwrap();
    for name in ["right", "right-ipam"] {
        // Another test may have made it.
        let _ = std::os::unix::fs::symlink(&program, directory.join(name));
    }
    let mut tried = suite();
    tried
        .args(["--only", "add_succeeds", "--describe"])
        .arg(described("right-ipam"));
    let tried = tried.arg("--path").arg(&directory).output().unwrap();
    match tried.status.code() {
        Some(3) => {
            skip(test, &String::from_utf8_lossy(&tried.stderr));
            None
        }
        _ => Some(directory),
    }
}

/// Cargo builds it beside the tests.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent()
        .unwrap()
        .with_file_name("examples")
        .join("right")
}

fn described(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.json"))
}

/// The suite with `arguments` for the plugin `name` that does `wrong`. The files have the name
/// `file`.
fn command(
    directory: &Path,
    plugins: &Path,
    name: &str,
    file: &str,
    wrong: &str,
    arguments: &[&str],
) -> Command {
    let mut description: Value =
        serde_json::from_slice(&fs::read(described(name)).unwrap()).unwrap();
    description["known"] = json!({});
    description["cniVersions"] = json!(VERSIONS);
    description["env"]["REAL"] = json!(plugins.join(name));
    let script = directory.join(file);
    fs::write(&script, format!("{HEAD}{wrong}{TAIL}")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let file = directory.join(format!("{file}.json"));
    fs::write(&file, description.to_string()).unwrap();
    let mut command = suite();
    command.args(["--format", "json"]).args(arguments);
    command
        .arg("--describe")
        .arg(file)
        .arg("--plugin")
        .arg(script)
        .arg("--path")
        .arg(plugins);
    command
}

/// Runs it.
fn judged(
    directory: &Path,
    plugins: &Path,
    name: &str,
    file: &str,
    wrong: &str,
    arguments: &[&str],
) -> Output {
    command(directory, plugins, name, file, wrong, arguments)
        .output()
        .unwrap()
}

/// The checks of its report.
fn checks(output: &Output) -> Vec<Value> {
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {output:?}"));
    report["plugins"][0]["checks"].as_array().unwrap().clone()
}

/// What the suite says of `check` where the plugin does `wrong`.
fn verdict(
    directory: &Path,
    plugins: &Path,
    name: &str,
    check: &str,
    file: &str,
    wrong: &str,
) -> Value {
    let arguments = ["--jobs", "2", "--limit", "10", "--exactly", "--only", check];
    let output = judged(directory, plugins, name, file, wrong, &arguments);
    checks(&output)
        .into_iter()
        .find(|one| one["name"] == check)
        .unwrap()
}

/// The faults, several at a time: what is wrong with each.
fn each_fault(judge: impl Fn(usize, &Fault) -> Vec<String> + Sync) {
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let only = std::env::var("CONFORMANCE_TEST_FAULT").unwrap_or_default();
    let worker = || {
        while let Some((at, fault)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            WRONG.get(at).map(|one| (at, one))
        } {
            if fault.0.contains(&only) {
                let found = judge(at, fault);
                found.iter().for_each(|one| println!("{one}"));
                faults.lock().unwrap().extend(found);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(worker);
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The plugin that is behind a fault, and the check.
fn of_fault(fault: &Fault) -> (&'static str, &'static str) {
    match fault.0.strip_prefix("ipam:") {
        Some(check) => ("right-ipam", check),
        None => ("right", fault.0),
    }
}

/// A script that replays the failure fails, too, and does not for the plugin that has no fault.
#[test]
fn each_check_fails_a_plugin_that_does_it_wrong_and_so_does_its_script() {
    let Some(plugins) = plugins("each_check_fails") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    each_fault(|at, fault| {
        let (plugin, check) = of_fault(fault);
        let found = verdict(
            directory.path(),
            &plugins,
            plugin,
            check,
            &format!("{check}-{at}"),
            fault.1,
        );
        let mut faults = Vec::new();
        if found["outcome"] != "fail" {
            return vec![format!("{check}: {}, {}", found["outcome"], found["seen"])];
        }
        let script = directory.path().join(format!("{check}-{at}.sh"));
        fs::write(&script, found["replay"].as_str().unwrap()).unwrap();
        for (program, status) in [(None, 1), (Some(plugins.join(plugin)), 0)] {
            let mut command = Command::new("bash");
            command
                .arg(&script)
                .env("CNI_CONFORMANCE", env!("CARGO_BIN_EXE_cni-conformance"));
            command.envs(program.as_ref().map(|program| ("PLUGIN", program)));
            let output = command.output().unwrap();
            if output.status.code() != Some(status) {
                faults.push(format!("{check}: its script, with {program:?}: {output:?}"));
            }
        }
        faults
    });
}

/// A plugin that does one thing wrong fails the check of that, and those that it fails of
/// necessity. All faults with all checks take long, and are for a run of their own: others try the
/// faults of MUST and of harm with the checks that are asked by default.
#[test]
fn no_check_accuses_a_plugin_of_what_another_did() {
    let Some(plugins) = plugins("no_check_accuses") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let is_full = std::env::var_os("CONFORMANCE_TEST_FULL").is_some();
    let all = cni_conformance::checks::all();
    let counts = |name: &str| {
        let check = all.iter().find(|check| check.name == name).unwrap();
        check.level_in("1.1.0") == Level::Must || check.harm <= Harm::Leak
    };
    each_fault(|at, fault| {
        let (plugin, check) = of_fault(fault);
        if !is_full && !counts(check) {
            return Vec::new();
        }
        // What other calls meet differs from run to run.
        let mut arguments = vec!["--jobs", "3", "--limit", "30", "--except", "same_time"];
        arguments.extend([
            "--profile",
            if is_full {
                "spec,runtimes,extra"
            } else {
                "spec"
            },
        ]);
        let output = judged(
            directory.path(),
            &plugins,
            plugin,
            &format!("{check}-{at}"),
            fault.1,
            &arguments,
        );
        let failed = outcomes(&output).into_iter().filter(|(name, outcome, _)| {
            outcome == "fail" && check != name && !fault.2.contains(&name.as_str())
        });
        failed
            .map(|(name, _, seen)| format!("{check} {at}: fails {name}, too: {seen}"))
            .collect()
    });
}

/// A check that only ever is left out or fails would accuse everybody, or nobody.
#[test]
fn each_check_passes_a_plugin_that_does_nothing_wrong() {
    let Some(plugins) = plugins("each_check_passes") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut passed = BTreeSet::new();
    for plugin in ["right", "right-ipam"] {
        let arguments = ["--profile", "spec,runtimes,extra", "--jobs", "4"];
        let output = judged(directory.path(), &plugins, plugin, plugin, "", &arguments);
        for (name, outcome, seen) in outcomes(&output) {
            assert_ne!(outcome, "fail", "{plugin}: {name}: {seen}");
            passed.extend((outcome == "pass").then_some(name));
        }
    }
    let checks = cni_conformance::checks::all();
    let never: Vec<_> = checks
        .iter()
        .filter(|check| !passed.contains(check.name))
        .collect();
    assert!(never.is_empty(), "{never:?}");
}

#[test]
fn the_list_of_the_checks_has_each_with_what_the_specification_says() {
    let listed = String::from_utf8(suite().arg("--list").output().unwrap().stdout).unwrap();
    for check in cni_conformance::checks::all() {
        let line = format!("`{}` ({}): {}\n", check.name, check.harm, check.asks);
        let (_, below) = listed.split_once(&line).unwrap_or_else(|| panic!("{line}"));
        let below = below.split("\n* ").next().unwrap();
        let basis = check.basis_in(VERSIONS[VERSIONS.len() - 1]);
        assert!(
            basis.is_none_or(|basis| below.contains(&basis.address())),
            "{below}"
        );
        assert!(below.contains(check.why), "{below}");
    }
}

#[test]
fn each_check_has_a_plugin_that_does_it_wrong() {
    let wrong: BTreeSet<&str> = WRONG
        .iter()
        .map(|(name, ..)| name.trim_start_matches("ipam:"))
        .collect();
    let checks: BTreeSet<&str> = cni_conformance::checks::all()
        .iter()
        .map(|check| check.name)
        .collect();
    assert_eq!(wrong, checks);
}

/// The text is compared with the specification by whoever changes it; that there is one is compared
/// here.
#[test]
fn each_level_has_a_sentence_that_says_so_and_each_other_check_a_reason() {
    let mut names = BTreeSet::new();
    for check in cni_conformance::checks::all() {
        let name = check.name;
        assert!(names.insert(name), "{name} is there twice");
        assert!(
            !cni_conformance::checks::RETIRED.contains(&name),
            "{name} was another check"
        );
        assert!(
            !check.basis.is_empty() || !check.why.is_empty(),
            "{name} has no reason"
        );
        for version in VERSIONS {
            let basis = check.basis_in(version);
            assert_eq!(
                basis.is_some(),
                check.level_in(version) != Level::Quality,
                "{name} in {version}"
            );
            let Some(basis) = basis else { continue };
            let word = if basis.level == Level::Must {
                "must"
            } else {
                "should"
            };
            let binds = basis.text.to_lowercase().contains(word);
            // Two lists of keys are said to be required in another way.
            assert!(
                binds || basis.text.contains(" are required "),
                "{name}: {}",
                basis.text
            );
        }
    }
}

/// What no sentence forbids: a host's interface of the same name, keys of its own, what stands
/// around the JSON and on stderr, what lives on, and a start that takes its time.
#[test]
fn a_plugin_that_is_unusual_fails_nothing() {
    let Some(plugins) = plugins("a_plugin_that_is_unusual") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let unusual = r#"[ "$CNI_COMMAND" ] && sleep 0.1; take; head -c 100000 /dev/zero | tr '\0' x >&2
        setsid sleep 60 </dev/null >/dev/null 2>&1 &
        r=$(real); s=$?; [ $s = 0 ] && is ADD && r=$(printf %s "$r" | jq -S --tab '.ips[]? |= (if .interface then .interface += 1 else . end) | .ips[]? |= (.gateway //= "") | .vendor = {x: ("y" * 100000)} | .interfaces[]?.vendor = 1 | .interfaces = [{name: "net1", mac: "02:00:00:00:00:01", mtu: 9}] + .interfaces | if .cniVersion < "1" then del(.interfaces[].mtu) else . end')
        [ "$r" ] && printf '\n \t%s\r\n\n' "$r"; exit $s"#;
    let except = ["same_time", "no_verb", "version_does_not_wait"].map(|name| ["--except", name]);
    let arguments = [
        &["--limit", "60", "--level", "should"][..],
        &except.concat(),
    ]
    .concat();
    let output = judged(
        directory.path(),
        &plugins,
        "right",
        "unusual",
        unusual,
        &arguments,
    );
    let failed = outcomes(&output)
        .into_iter()
        .filter(|(_, outcome, _)| outcome == "fail");
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(
        outcomes(&output)
            .iter()
            .filter(|(_, outcome, _)| outcome == "pass")
            .count()
            > 50
    );
}

/// The specification demands an exit status, and only recommends an error object.
#[test]
fn a_plugin_that_only_exits_fails_no_must() {
    let Some(plugins) = plugins("a_plugin_that_only_exits") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mute = "take; out=$(real); s=$?; [ $s = 0 ] && printf '%s' \"$out\"; exit $s";
    for plugin in ["right", "right-ipam"] {
        // It reads its stdin to its end, which the last two do not have.
        let except =
            ["same_time", "version_does_not_wait", "no_verb"].map(|name| ["--except", name]);
        let except = except.concat();
        let output = judged(directory.path(), &plugins, plugin, plugin, mute, &except);
        let of = |level: &str, outcome: &str| -> Vec<String> {
            let all = checks(&output);
            let these = all
                .iter()
                .filter(|one| one["level"] == level && one["outcome"] == outcome);
            these
                .map(|one| format!("{}: {}", one["name"], one["seen"]))
                .collect()
        };
        assert_eq!(of("MUST", "fail"), Vec::<String>::new());
        assert!(
            of("SHOULD", "fail")
                .iter()
                .any(|one| one.contains("failure_is_one_error"))
        );
        assert!(of("MUST", "pass").len() > 12);
    }
}

/// A rule that stays, as a plugin for ports leaves it.
#[test]
fn the_firewall_is_compared() {
    let Some(plugins) = plugins("the_firewall_is_compared") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script =
        "is DEL && [ $CNI_CONTAINERID = c0 ] && nft add table ip stray && nft add chain ip stray c";
    let arguments = ["--only", "life_leaves_nothing"];
    let output = judged(
        directory.path(),
        &plugins,
        "right-ipam",
        "rule",
        script,
        &arguments,
    );
    let told = String::from_utf8_lossy(&output.stderr);
    if told.contains("firewall") {
        skip("the_firewall_is_compared", &told);
        return;
    }
    let found = &checks(&output)[0];
    assert_eq!(found["outcome"], "fail", "{found}");
    assert!(
        found["seen"].to_string().contains("table ip stray"),
        "{found}"
    );
    let output = judged(
        directory.path(),
        &plugins,
        "right-ipam",
        "none",
        "",
        &arguments,
    );
    assert_eq!(checks(&output)[0]["outcome"], "pass");
}

#[test]
fn every_description_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let descriptions = cni_conformance::description::Description::read(&path).unwrap();
        assert_eq!(
            path.file_stem().unwrap().to_str(),
            Some(descriptions[0].name.as_str())
        );
    }
}

/// The processes of this machine whose command line ends so.
fn running(end: &str) -> Vec<String> {
    let of_process = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("cmdline")).ok();
    let all = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| of_process(entry.unwrap()));
    all.map(|line| line.replace('\0', " "))
        .filter(|line| line.trim_end().ends_with(end))
        .collect()
}

#[test]
fn what_a_plugin_leaves_running_ends_with_the_check() {
    let Some(plugins) = plugins("what_a_plugin_leaves_running") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Nobody else sleeps as long.
    let time = format!("77{}", std::process::id());
    let daemon = format!("is ADD && {{ setsid sleep {time} </dev/null >/dev/null 2>&1 & }}");
    let run = |file: &str, script: &str, arguments: &[&str]| {
        let begun = Instant::now();
        let output = judged(
            directory.path(),
            &plugins,
            "right-ipam",
            file,
            script,
            arguments,
        );
        assert_eq!(checks(&output)[0]["outcome"], "pass", "{output:?}");
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(running(&time), Vec::<String>::new());
    };
    run("daemon", &daemon, &["--only", "no_child_is_left"]);
    let elsewhere = daemon.replace("sleep", "unshare -mn sleep");
    run("elsewhere", &elsewhere, &["--only", "no_child_is_left"]);
}

/// It sees no process but those of the suite, and the suite is the first of them.
#[test]
fn a_plugin_ends_neither_the_suite_nor_a_process_of_the_host() {
    let Some(plugins) = plugins("a_plugin_ends_neither") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Nobody else sleeps as long.
    let time = format!("78{}", std::process::id());
    let mut bystander = Command::new("sleep").arg(&time).spawn().unwrap();
    let script = format!(
        "is ADD && {{ kill -KILL $PPID; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q '[s]leep {time}' && bad 11; kill -KILL {}; }}",
        bystander.id()
    );
    let output = judged(
        directory.path(),
        &plugins,
        "right-ipam",
        "kills",
        &script,
        &["--only", "add_succeeds"],
    );
    let is_alive = bystander.try_wait().unwrap().is_none();
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    assert!(is_alive);
    assert_eq!(checks(&output)[0]["outcome"], "pass", "{output:?}");
}

#[test]
fn a_suite_that_is_ended_ends_its_plugins() {
    let Some(plugins) = plugins("a_suite_that_is_ended") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let time = format!("79{}", std::process::id());
    let hangs = format!("is ADD && exec setsid sleep {time}");
    let waits_for = |count: usize| {
        let begun = Instant::now();
        while running(&time).len() != count {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{:?}",
                running(&time)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let arguments = ["--only", "add_succeeds"];
        let mut begun = command(
            directory.path(),
            &plugins,
            "right-ipam",
            "hangs",
            &hangs,
            &arguments,
        );
        let mut begun = begun.stdout(Stdio::null()).spawn().unwrap();
        waits_for(1);
        kill(Pid::from_raw(i32::try_from(begun.id()).unwrap()), signal).unwrap();
        assert_eq!(begun.wait().unwrap().signal(), Some(signal as i32));
        waits_for(0);
    }
}

/// What became of each of these checks, and what was seen.
fn outcomes(output: &Output) -> Vec<(String, String, String)> {
    let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    checks(output)
        .iter()
        .map(|one| (text(one, "name"), text(one, "outcome"), text(one, "seen")))
        .collect()
}

#[test]
fn what_a_plugin_prints_is_bounded() {
    let Some(plugins) = plugins("what_a_plugin_prints") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let seen = |file: &str, wrong: &str| {
        let arguments = ["--only", "add_succeeds", "--limit", "5"];
        let output = judged(
            directory.path(),
            &plugins,
            "right-ipam",
            file,
            wrong,
            &arguments,
        );
        let (_, outcome, seen) = outcomes(&output).remove(0);
        assert_eq!(outcome, "fail");
        seen
    };
    let long = seen("long", "is ADD && head -c 3000000 /dev/zero && ok");
    assert!(long.contains("1 MiB") && long.len() < 4000, "{long}");
    let endless = seen("endless", "is ADD && exec yes");
    assert!(endless.contains("did not end within 5 s"), "{endless}");
    let garbage = seen("garbage", "is ADD && head -c 100000 /dev/zero && ok");
    assert!(
        garbage.contains("JSON") && garbage.len() < 4000,
        "{garbage}"
    );
    let orders = seen("orders", "is ADD && printf '\\033[2J x' && exit 1");
    assert!(orders.ends_with("exit status 1, \u{fffd}[2J x"), "{orders}");
}

#[test]
fn what_keeps_stdout_hides_no_result() {
    let Some(plugins) = plugins("what_keeps_stdout") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let arguments = ["--only", "add_succeeds", "--only", "no_child_is_left"];
    let script = "is ADD && { setsid sleep 60 & }";
    let output = judged(
        directory.path(),
        &plugins,
        "right-ipam",
        "keeps",
        script,
        &arguments,
    );
    let found: Vec<_> = outcomes(&output)
        .into_iter()
        .map(|(name, outcome, _)| (name, outcome))
        .collect();
    let expected = [("add_succeeds", "pass"), ("no_child_is_left", "fail")];
    assert_eq!(
        found,
        expected.map(|(name, outcome)| (name.to_owned(), outcome.to_owned()))
    );
}

/// Another check says so: a plugin that serves no 0.4.0 has no results of it, and none with a wrong
/// family.
#[test]
fn an_add_that_fails_where_it_is_unusual_is_told_once() {
    let Some(plugins) = plugins("an_add_that_fails") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (at, (script, told, silent)) in [
        (
            "take; is ADD && has '\"0.4.0\"' && bad 1",
            "versions_are_served",
            "result_of_0_4_has_families",
        ),
        (
            "is ADD && [ -e /run/once ] && bad 11; is DEL && touch /run/once",
            "add_after_del_is_as_the_first",
            "life_leaves_nothing",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let file = format!("unusual-{at}");
        let of = |check: &str| verdict(directory.path(), &plugins, "right", check, &file, script);
        assert_eq!(of(told)["outcome"], "fail");
        let found = of(silent);
        assert_eq!(found["outcome"], "left-out", "{found}");
        assert!(
            found["seen"].as_str().unwrap().contains("its ADD fails: "),
            "{found}"
        );
    }
}

/// With what it says on stderr, where the reason may be.
#[test]
fn a_plugin_whose_add_fails_has_one_finding_and_no_score() {
    let Some(_) = plugins("a_plugin_whose_add_fails") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let description = json!({"kind": "main", "conf": {"type": "x"}});
    for script in [
        "echo no kernel module >&2\nbad 999",
        "echo no kernel module >&2\nexit 1",
        "take; echo no kernel module; ok",
    ] {
        let arguments = ["--format", "json", "--profile", "spec,runtimes,extra"];
        let output = judged_alone(directory.path(), &description, script, &arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let all = outcomes(&output);
        let failed: Vec<_> = all
            .iter()
            .filter(|(_, outcome, _)| outcome != "left-out")
            .collect();
        let [(name, outcome, seen)] = failed[..] else {
            panic!("{failed:?}")
        };
        assert_eq!((name.as_str(), outcome.as_str()), ("add_succeeds", "fail"));
        assert!(seen.contains("no kernel module"), "{seen}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["plugins"][0]["counts"].is_null());
    }
}

/// One that does nothing has nothing to be judged.
#[test]
fn a_plugin_that_does_nothing_passes_nothing_that_asks_for_something() {
    let Some(_) = plugins("a_plugin_that_does_nothing") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let version = r#"is VERSION && { take; printf %s "$input" | jq -c '{cniVersion, supportedVersions: ["1.0.0","1.1.0"]}'; ok; }"#;
    let empty =
        format!("{version}\ntake\nis ADD && printf %s \"$input\" | jq -c '{{cniVersion}}'\nok");
    let echo = format!(
        "{version}\ntake\nis ADD && printf %s \"$input\" | jq -c '.prevResult + {{cniVersion}}'\nok"
    );
    let pod = json!(["link add {IFNAME} type veth peer name p-{IFNAME}"]);
    // Of DEL, GC and their like, nothing can be seen; of the result, what is not in it.
    let nothing = [
        "DEL",
        "life",
        "pod is as before",
        "releases",
        "prefix",
        "index",
    ];
    for (description, script, expected) in [
        (
            json!({"kind": "main", "conf": {"type": "x"}}),
            &empty,
            vec!["interface_is_made"],
        ),
        (
            json!({"kind": "ipam", "conf": {"ipam": {"type": "x"}}}),
            &empty,
            vec!["ipam_result_has_an_address"],
        ),
        (
            json!({"kind": "meta", "conf": {"type": "x"}, "pod": pod}),
            &echo,
            vec![],
        ),
    ] {
        let output = judged_alone(
            directory.path(),
            &description,
            script,
            &["--format", "json"],
        );
        let of = |outcome: &str| -> Vec<Value> {
            checks(&output)
                .into_iter()
                .filter(|one| one["outcome"] == outcome)
                .collect()
        };
        let failed: Vec<_> = of("fail")
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(failed, expected, "{output:?}");
        for one in of("pass").iter().filter(|one| one["level"] == "MUST") {
            let asks = one["asks"].as_str().unwrap();
            assert!(
                !nothing
                    .iter()
                    .any(|word| asks.starts_with(word) || asks.contains("releases")),
                "{one}"
            );
        }
        println!(
            "{}",
            of("pass")
                .iter()
                .map(|one| one["name"].to_string())
                .collect::<Vec<_>>()
                .join(" ")
        );
    }
}

/// What README.md shows: a plugin of a few lines that nobody here described.
#[test]
fn the_plugin_of_the_documents_is_scored_by_them_alone() {
    let Some(_) = plugins("the_plugin_of_the_documents") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let readme = include_str!("../README.md");
    let block = |language: &str| {
        let begin = format!("```{language}\n");
        readme
            .split_once(&begin)
            .unwrap()
            .1
            .split_once("```")
            .unwrap()
            .0
    };
    let (plugin, description) = (
        directory.path().join("shell-veth"),
        directory.path().join("shell-veth.json"),
    );
    fs::write(&plugin, block("sh")).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&description, block("json")).unwrap();
    assert!(block("sh").lines().count() <= 40);
    let begun = Instant::now();
    let output = suite()
        .arg("--describe")
        .arg(&description)
        .arg("--plugin")
        .arg(&plugin)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("MUST 0, SHOULD 0"), "{text}");
    assert!(
        begun.elapsed() < Duration::from_secs(300),
        "{:?}",
        begun.elapsed()
    );
}

/// The step of action.yml, which must give action.sh what that reads.
#[test]
fn the_action_judges_a_plugin_and_leaves_reports() {
    let Some(_) = plugins("the_action_judges") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (yaml, script) = (include_str!("../action.yml"), include_str!("../action.sh"));
    let inputs = yaml.split_once("runs:").unwrap().0;
    let inputs = inputs
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.strip_suffix(':'));
    for input in inputs.filter(|line| !line.starts_with(' ')) {
        assert!(
            yaml.contains(&format!("inputs.{input} ")),
            "{input} is not used"
        );
    }
    let given = yaml
        .split_once("env:")
        .unwrap()
        .1
        .split_once("- if")
        .unwrap()
        .0;
    let given: BTreeSet<_> = given
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .map(|(name, _)| name)
        .collect();
    let usage = script
        .split_once("# usage: ")
        .unwrap()
        .1
        .split_once(" action.sh")
        .unwrap()
        .0;
    let read: BTreeSet<_> = usage
        .split_whitespace()
        .filter_map(|word| word.trim_start_matches('[').split_once('='))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(given, read);
    let plugin = directory.path().join("alone");
    fs::write(&plugin, format!("{HEAD}{}", files(""))).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let description =
        json!({"kind": "ipam", "conf": {"ipam": {"type": "x"}}, "variants": {"two": {}}});
    fs::write(directory.path().join("alone.json"), description.to_string()).unwrap();
    let act = |baseline: &str, reports: &str| {
        let mut action = Command::new("bash");
        action
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("action.sh"))
            .current_dir(&directory);
        action.envs([
            ("CNI_CONFORMANCE", env!("CARGO_BIN_EXE_cni-conformance")),
            ("DESCRIPTIONS", "alone.json"),
        ]);
        action.envs([
            ("PLUGIN", "alone"),
            ("PLUGINS", ""),
            ("PROFILE", ""),
            ("LEVEL", ""),
            ("BASELINE", baseline),
        ]);
        action
            .envs([("REPORTS", reports), ("GITHUB_STEP_SUMMARY", "summary.md")])
            .output()
            .unwrap()
    };
    let output = act("", "reports");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let report: Value = serde_json::from_str(&read("reports/report.json")).unwrap();
    assert_eq!(report["plugins"][1]["plugin"], "x/two");
    assert!(read("reports/junit.xml").contains("<failure "));
    assert!(read("reports/x_two.html").contains("<h2 id=\"x/two\">"));
    assert_eq!(read("summary.md"), read("reports/scores.md"));
    assert!(
        directory
            .path()
            .join("reports/replay/x.leases_differ.sh")
            .is_file()
    );
    assert_eq!(act("reports/report.json", "again").status.code(), Some(0));
}

/// What a description hides, and what it does not know yet.
#[test]
fn a_description_that_hides_or_is_out_of_date_is_told() {
    let Some(_) = plugins("a_description_that_hides") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let good = "take\nis ADD && echo '{\"cniVersion\":\"1.1.0\"}'\nexit 0";
    for (more, told) in [
        (json!({"stays": ["*"]}), Some("hides what nobody has named")),
        (
            json!({"stays": ["/run/*"]}),
            Some("hides what nobody has named"),
        ),
        (
            json!({"known": {"add_succeeds": "an issue"}}),
            Some("add_succeeds does not fail any more"),
        ),
        (json!({"stays": ["/run/x/*"]}), None),
    ] {
        let mut description = json!({"kind": "main", "conf": {"type": "x"}});
        description
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        for strict in [false, true] {
            let arguments = [
                &["--only", "add_succeeds"][..],
                if strict { &["--strict"] } else { &[] },
            ]
            .concat();
            let output = judged_alone(directory.path(), &description, good, &arguments);
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(i32::from(strict && told.is_some())),
                "{text}"
            );
            assert!(told.is_none_or(|told| text.contains(told)), "{text}");
        }
    }
}

/// A meta plugin that has another one make the interface.
#[test]
fn a_plugin_that_delegates_without_ipam_is_asked_whether_it_calls_the_other() {
    let Some(_) = plugins("a_plugin_that_delegates") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = r#"
        is VERSION && { take; echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}'; ok; }
        take
        type=$(printf %s "$input" | jq -r .delegate.type)
        for d in $(echo "$CNI_PATH" | tr : ' '); do [ -x "$d/$type" ] && other=$d/$type && break; done
        [ "$other" ] || bad 3
        is CALLS && ok
        printf %s "$input" | jq -c '.delegate + {name, cniVersion, prevResult} + if has("cni.dev/valid-attachments") then {"cni.dev/valid-attachments"} else {} end' | "$other""#;
    let other = directory.path().join("makes");
    let makes = r#"is ADD && { ip -n "${CNI_NETNS##*/}" link add $CNI_IFNAME type veth peer name p-$CNI_IFNAME
            printf '{"cniVersion":"1.1.0","interfaces":[{"name":"%s","sandbox":"%s"}]}' $CNI_IFNAME $CNI_NETNS; }
        is DEL && in_pod link del $CNI_IFNAME
        ok"#;
    fs::write(&other, format!("{HEAD}cat >/dev/null\n{makes}")).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    let description = json!({"kind": "main", "delegate": "/delegate", "cniVersions": ["1.1.0"],
        "conf": {"type": "x", "delegate": {"type": "makes"}}});
    let outcome = |calls: &str, check: &str| {
        let script = script.replace("CALLS", calls);
        let arguments = ["--format", "json", "--exactly", "--only", check];
        let output = judged_alone(directory.path(), &description, &script, &arguments);
        let (_, outcome, seen) = outcomes(&output).remove(0);
        println!("{calls} {check}: {outcome} {seen}");
        outcome
    };
    for (verb, check) in [
        ("GC", "gc_calls_the_ipam"),
        ("DEL", "del_calls_the_ipam"),
        ("STATUS", "status_calls_the_ipam"),
    ] {
        assert_eq!(outcome(verb, check), "fail");
        assert_eq!(outcome("NOTHING", check), "pass");
    }
    // What is about addresses is not asked.
    assert_eq!(outcome("NOTHING", "failed_ipam_is_told"), "left-out");
    let none = json!({"kind": "main", "delegate": "/delegate", "conf": {"type": "x"}});
    let output = judged_alone(directory.path(), &none, script, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// A script is written for each failure, and what failed in an earlier run does not count.
#[test]
fn what_failed_before_does_not_count_and_is_told() {
    let Some(_) = plugins("what_failed_before") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let description = json!({"kind": "main", "conf": {"type": "x"}});
    let good = "take\nis ADD && echo '{\"cniVersion\":\"1.1.0\"}'\nexit 0";
    let scripts = directory.path().join("scripts");
    let replay = [
        "--replay",
        scripts.to_str().unwrap(),
        "--only",
        "interface_is_made",
        "--format",
        "json",
    ];
    let output = judged_alone(directory.path(), &description, good, &replay);
    assert_eq!(output.status.code(), Some(1));
    assert!(scripts.join("x.interface_is_made.sh").is_file());
    let old = directory.path().join("old.json");
    fs::write(&old, &output.stdout).unwrap();
    let base = ["--baseline", old.to_str().unwrap(), "--only"];
    for (check, code, told) in [
        ("interface_is_made", 0, ""),
        ("add_succeeds", 0, "gone: interface_is_made: not asked"),
        (
            "version_lists_versions",
            0,
            "new check, which fails: quality version_lists_versions",
        ),
    ] {
        let output = judged_alone(
            directory.path(),
            &description,
            good,
            &[&base[..], &[check]].concat(),
        );
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(told), "{text}");
    }
    let level = [
        "--level",
        "quality",
        "--only",
        "version_lists_versions",
        "--baseline",
        old.to_str().unwrap(),
    ];
    assert_eq!(
        judged_alone(directory.path(), &description, good, &level)
            .status
            .code(),
        Some(1)
    );
    assert_eq!(
        judged_alone(
            directory.path(),
            &description,
            good,
            &["--baseline", "/nonexistent"]
        )
        .status
        .code(),
        Some(2)
    );
}

/// A variant is judged as a plugin of its own name, everywhere.
#[test]
fn every_check_is_asked_of_each_variant_and_findings_name_it() {
    let Some(_) = plugins("every_check_is_asked_of_each_variant") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let description = json!({"kind": "ipam", "conf": {"ipam": {"type": "x"}},
        "variants": {"deaf": {"conf": {"wrong": "DEL"}}, "loud": {"conf": {"wrong": "echo"}}}});
    let script = files("").replace("is DEL &&", "is DEL && has '\"DEL\"' && bad 11; is DEL &&");
    let script = script.replace("ok", "is DEL && has '\"echo\"' && echo loud; ok");
    let run = |format: &str, more: &[&str]| {
        let only = [
            "--only",
            "del_after_add",
            "--only",
            "success_is_silent",
            "--quiet",
            "--level",
            "quality",
        ];
        let arguments = [&["--format", format][..], &only, more].concat();
        judged_alone(directory.path(), &description, &script, &arguments)
    };
    let scripts = directory.path().join("scripts");
    let output = run("json", &["--replay", scripts.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed: Vec<_> = report["plugins"]
        .as_array()
        .unwrap()
        .iter()
        .map(|plugin| {
            let checks = plugin["checks"].as_array().unwrap();
            assert_eq!(checks.len(), 2);
            let failed = checks
                .iter()
                .filter(|one| one["outcome"] == "fail")
                .map(|one| one["name"].clone());
            json!([plugin["plugin"], failed.collect::<Vec<_>>()])
        })
        .collect();
    let expected = json!([
        ["x", []],
        ["x/deaf", ["del_after_add"]],
        ["x/loud", ["success_is_silent"]]
    ]);
    assert_eq!(json!(failed), expected);
    // A script has what is other in its variant.
    for (script, status) in [
        ("x_deaf.del_after_add.sh", 1),
        ("x_loud.success_is_silent.sh", 1),
    ] {
        let ended = Command::new("bash")
            .arg(scripts.join(script))
            .output()
            .unwrap();
        assert_eq!(ended.status.code(), Some(status), "{ended:?}");
    }
    for (format, text) in [
        ("table", "x/deaf, by 1.1.0: failures: "),
        ("scores", "| x/deaf | 1.1.0 | - | 1 | 0 | 1 |"),
        (
            "junit",
            "<testsuite name=\"x/deaf\" tests=\"2\" failures=\"1\"",
        ),
        ("html", "<h2 id=\"x/deaf\">"),
    ] {
        let text_of = run(format, &[]);
        let text_of = String::from_utf8_lossy(&text_of.stdout);
        assert!(text_of.contains(text), "{text_of}");
    }
    // What failed in one variant is new in another.
    let mut old = report.clone();
    old["plugins"].as_array_mut().unwrap().truncate(2);
    let file = directory.path().join("old.json");
    fs::write(&file, old.to_string()).unwrap();
    let output = run("json", &["--baseline", file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("x/loud: ") && told.contains("success_is_silent"),
        "{told}"
    );
    assert!(!told.contains("x/deaf"), "{told}");
}

/// One address suffices for no two attachments: that is no fault of the plugin.
#[test]
fn a_plugin_whose_pool_has_one_address_fails_nothing() {
    let Some(plugins) = plugins("a_plugin_whose_pool") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in ["right", "right-ipam"] {
        let mut description: Value =
            serde_json::from_slice(&fs::read(described(name)).unwrap()).unwrap();
        description["conf"]["ipam"]["subnet"] = json!("10.9.0.0/31");
        description["conf"]["ipam"]["gateway"] = json!("10.9.0.0");
        let file = directory.path().join(name);
        fs::write(&file, description.to_string()).unwrap();
        let mut command = suite();
        command
            .args([
                "--format",
                "json",
                "--profile",
                "spec,runtimes,extra",
                "--describe",
            ])
            .arg(file);
        let output = command.arg("--path").arg(&plugins).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        let line = format!(
            "{name}: checks that need more attachments than 1 at once are left out: its ADD fails"
        );
        assert!(told.contains(&line), "{told}");
        for (check, (_, outcome, seen)) in
            cni_conformance::checks::all().iter().zip(outcomes(&output))
        {
            assert_ne!(outcome, "fail", "{}: {seen}", check.name);
            let reason = format!(
                "it needs {} attachments at once, and there could be 1: ",
                check.attachments
            );
            assert_eq!(
                seen.starts_with(&reason),
                check.attachments > 1,
                "{}: {seen}",
                check.name
            );
        }
    }
}

/// An IPAM plugin with `count` addresses. Where it `loses` them, DEL gives nothing back.
fn pool(count: usize, loses: bool) -> String {
    let gives_back = if loses { ":" } else { r#"rm -rf "${one%/*}""# };
    format!(
        r#"
        is VERSION && echo '{{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}}' && ok
        take
        has '"1.0.0"' || bad 1
        is ADD && {{
            mkdir -p /run/leases
            for n in $(seq {count}); do
                mkdir /run/leases/$n 2>/dev/null || continue
                >/run/leases/$n/$CNI_CONTAINERID.$CNI_IFNAME
                echo '{{"cniVersion":"1.0.0","ips":[{{"address":"10.9.0.'$n'/24"}}]}}'
                ok
            done
            bad 11
        }}
        is DEL && for one in /run/leases/*/$CNI_CONTAINERID.$CNI_IFNAME; do {gives_back}; done
        ok"#
    )
}

/// It serves no version but 1.0.0, which is that of its first ADDs, too.
#[test]
fn a_check_is_asked_where_there_can_be_all_of_its_attachments() {
    let Some(_) = plugins("a_check_is_asked_where") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let description = json!({"kind": "ipam", "conf": {"ipam": {"type": "x"}}});
    let found = |checks: &[&str], script: &str| {
        let arguments: Vec<_> = checks.iter().flat_map(|check| ["--only", check]).collect();
        let arguments = [&["--format", "json"][..], &arguments].concat();
        let output = judged_alone(directory.path(), &description, script, &arguments);
        let is_told = String::from_utf8_lossy(&output.stderr).contains("more attachments than");
        (outcomes(&output), is_told)
    };
    let (one, three, eight) = (
        "add_after_del_is_as_the_first",
        "del_keeps_other_attachments",
        "addresses_are_had_by_one",
    );
    for count in [1, 2, 3, 7, 8] {
        let (found, is_told) = found(&[one, three, eight], &pool(count, false));
        assert_eq!(found.len(), 3);
        for (name, outcome, seen) in found {
            let needed = [(one, 1), (three, 3), (eight, 8)]
                .into_iter()
                .find(|(check, _)| *check == name);
            let needed = needed.unwrap().1;
            let expected = if needed <= count { "pass" } else { "left-out" };
            assert_eq!(outcome, expected, "{count} addresses: {name}: {seen}");
            let reason = format!(
                "it needs {needed} attachments at once, and there could be {count}: its ADD fails"
            );
            assert_eq!(seen.starts_with(&reason), needed > count, "{seen}");
        }
        assert_eq!(is_told, count < 8, "{count} addresses");
    }
    // No more are tried than are needed.
    assert!(!found(&[one, three], &pool(3, false)).1);
    // Neither garbage nor a crash says that nothing is left.
    for other in ["echo garbage; ok", "kill -SEGV $$"] {
        let (found, is_told) = found(&[eight], &pool(3, false).replace("bad 11", other));
        assert!(found[0].1 == "left-out" && !is_told, "{found:?}");
    }
    // What is lost from one life to the next makes no pool small, and is no fault of calls at the
    // same time.
    for (count, check, expected) in [
        (1, one, "fail"),
        (1, "life_leaves_nothing", "left-out"),
        (8, "adds_at_the_same_time", "left-out"),
        (8, eight, "left-out"),
    ] {
        let (found, is_told) = found(&[check], &pool(count, true));
        let (_, outcome, seen) = found.iter().find(|(name, ..)| name == check).unwrap();
        assert!(
            outcome == expected && seen.contains(r#""code":11"#) && !is_told,
            "{count} addresses: {found:?}"
        );
    }
}

/// Also where the third ADD fails because of it.
#[test]
fn a_second_interface_that_is_refused_leaves_its_check_out() {
    let Some(plugins) = plugins("a_second_interface") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script =
        "is ADD && { [ $CNI_IFNAME = net2 ] && touch /run/second; [ -e /run/second ] && bad 11; }";
    let check = "del_keeps_other_attachments";
    let found = verdict(directory.path(), &plugins, "right", check, "second", script);
    assert_eq!(found["outcome"], "left-out", "{found}");
    assert!(
        found["seen"].as_str().unwrap().contains("second interface"),
        "{found}"
    );
}

/// A plugin that leaves a file until DEL, and has `more` in its ADD.
fn files(more: &str) -> String {
    format!(
        r#"take
        is ADD && {{ >/run/$CNI_CONTAINERID; {more}
            echo '{{"cniVersion":"1.1.0","ips":[{{"address":"10.1.1.1/24"}}]}}'; }}
        is DEL && rm -f /run/$CNI_CONTAINERID
        ok"#
    )
}

#[test]
fn a_call_that_does_not_end_is_ended_at_its_limit() {
    let Some(_) = plugins("a_call_that_does_not_end") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let description = json!({"kind": "ipam", "conf": {"ipam": {"type": "x"}}});
    let script = files("sleep 60");
    let only = ["--format", "json", "--only", "add_succeeds"];
    let arguments = [&only[..], &["--limit", "2"]].concat();
    let output = judged_alone(directory.path(), &description, &script, &arguments);
    let (_, _, seen) = outcomes(&output).remove(0);
    assert!(seen.contains("did not end within 2 s"), "{seen}");
    // A check has a limit of its own, which says nothing of the plugin.
    let script = files("sleep 1");
    let slow = ["--format", "json", "--only", "second_lease_is_refused"];
    let arguments = [&slow[..], &["--check-limit", "1"]].concat();
    let output = judged_alone(directory.path(), &description, &script, &arguments);
    let (_, outcome, seen) = outcomes(&output).remove(0);
    assert_eq!(outcome, "left-out", "{seen}");
    assert!(seen.contains("--check-limit"), "{seen}");
    // Meanwhile, stderr says how far it is.
    let output = judged_alone(directory.path(), &description, &files("sleep 6"), &only);
    let told = String::from_utf8_lossy(&output.stderr);
    let progress = "0 of 1 checks, 0 failures that count; now add_succeeds";
    assert!(told.contains(progress), "{told}");
}

/// The worst plugins fail by default, whatever the level of what they do.
#[test]
fn a_plugin_that_does_harm_fails_by_default() {
    let Some(_) = plugins("a_plugin_that_does_harm") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let description = json!({"kind": "ipam", "conf": {"ipam": {"type": "x"}}});
    let one_address = r#"is VERSION && { take; echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'; ok; }
        take
        is ADD && echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.1.1/24"}]}'
        ok"#;
    let status = |description: &Value, script: &str, arguments: &[&str]| {
        let output = judged_alone(directory.path(), description, script, arguments);
        (output.status.code(), format!("{output:?}"))
    };
    let only = ["--only", "leases_differ"];
    let (code, told) = status(&description, one_address, &only);
    assert_eq!(code, Some(1), "{told}");
    let (code, told) = status(&description, one_address, &[]);
    assert_eq!(code, Some(1), "{told}");
    let stateless = json!({"kind": "ipam", "stateless": true, "conf": {"ipam": {"type": "x"}}});
    let (code, told) = status(&stateless, one_address, &only);
    assert!(
        code != Some(1) && told.contains("nothing could be asked"),
        "{told}"
    );
    let none = ["--only", "leases_differ", "--harm", "none"];
    assert_eq!(status(&description, one_address, &none).0, Some(0));
    // A plugin that does nothing.
    let main = json!({"kind": "meta", "conf": {"type": "x"}, "pod": ["link add {IFNAME} type veth peer name p-{IFNAME}"]});
    let nothing = r#"is VERSION && { take; echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'; ok; }
        take
        is ADD && printf %s "$input" | jq -c '.prevResult + {cniVersion}'
        ok"#;
    let (code, told) = status(&main, nothing, &["--level", "must"]);
    assert!(
        code == Some(1) && told.contains("nothing could be judged"),
        "{told}"
    );
}

/// Runs the suite on a plugin of its own, a script that has [`HEAD`], with this description.
fn judged_alone(directory: &Path, description: &Value, script: &str, arguments: &[&str]) -> Output {
    let plugin = directory.join("alone");
    fs::write(&plugin, format!("{HEAD}{script}")).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let file = directory.join("alone.json");
    fs::write(&file, description.to_string()).unwrap();
    suite()
        .args(arguments)
        .arg("--describe")
        .arg(file)
        .arg("--plugin")
        .arg(plugin)
        .output()
        .unwrap()
}

#[test]
fn a_del_of_another_container_has_no_result_of_the_first() {
    let Some(_) = plugins("a_del_of_another_container") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let description = json!({"kind": "meta", "conf": {"type": "x"}, "cniVersions": ["1.0.0"],
        "pod": ["link add {IFNAME} type veth peer name p-{IFNAME}"]});
    // What it takes from the result, it takes from whom that is.
    let script = r#"
        take
        is ADD && in_pod addr add 10.1.1.1/24 dev net1 && printf %s "$input" | jq -c '.prevResult + {cniVersion}'
        is DEL && has prevResult && ip -n c0 link set net1 mtu 1300
        exit 0"#;
    let arguments = [
        "--format",
        "json",
        "--only",
        "del_of_another_container_takes_nothing",
    ];
    let output = judged_alone(directory.path(), &description, script, &arguments);
    assert_eq!(checks(&output)[0]["outcome"], "pass", "{output:?}");
}

#[test]
fn an_address_is_sought_on_the_interface_that_the_result_says() {
    let Some(plugins) = plugins("an_address_is_sought") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (interface, outcome) in [(1, "pass"), (0, "fail"), (2, "pass")] {
        let more = format!(
            r#".interfaces += [{{"name":"lo","sandbox":env.CNI_NETNS}}] | .ips += [{{"address":"127.0.0.1/8","interface":{interface}}}]"#
        );
        let script = format!("take; is ADD && {{ real | jq -c '{more}'; ok; }}");
        let check = "result_matches_the_pod";
        let file = format!("other-{interface}");
        let found = verdict(directory.path(), &plugins, "right", check, &file, &script);
        assert_eq!(found["outcome"], outcome, "{found}");
    }
}

/// Without `cniVersions`, a plugin is asked for what its VERSION tells.
#[test]
fn versions_that_a_plugin_does_not_tell_are_not_asked() {
    let Some(_) = plugins("versions_that_a_plugin") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = r#"
        is VERSION && echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' && ok
        take
        has '"0.4.0"' || has '"1.0.0"' || bad 1
        is ADD && printf %s "$input" | jq -c '.prevResult + {cniVersion}'
        exit 0"#;
    let mut description = json!({"kind": "meta", "conf": {"type": "x"},
        "pod": ["link add {IFNAME} type veth peer name p-{IFNAME}"]});
    let arguments = ["--format", "json", "--only", "versions_are_served"];
    let output = judged_alone(directory.path(), &description, script, &arguments);
    assert_eq!(checks(&output)[0]["outcome"], "pass", "{output:?}");
    description["cniVersions"] = json!(["0.3.1", "1.0.0"]);
    let output = judged_alone(directory.path(), &description, script, &arguments);
    assert_eq!(checks(&output)[0]["outcome"], "fail", "{output:?}");
}

#[test]
fn the_exit_status_says_whose_fault_it_is() {
    let Some(_) = plugins("the_exit_status") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let good = "take\nis ADD && echo '{\"cniVersion\":\"1.1.0\"}'\nexit 0";
    let conf = json!({"type": "x"});
    let status = |more: Value, script: &str, arguments: &[&str]| {
        let mut description = json!({"kind": "main", "conf": conf});
        description
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let output = judged_alone(directory.path(), &description, script, arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("{:?} {text}", output.status.code());
        (output.status.code().unwrap(), text)
    };
    let plain = ["--only", "add_succeeds"];
    assert_eq!(status(json!({}), good, &plain).0, 0);
    assert_eq!(status(json!({}), "exit 1", &plain).0, 1);
    // No check is asked, for ADD fails.
    let (code, text) = status(json!({}), "exit 1", &["--only", "life_leaves_nothing"]);
    assert!(code == 1 && text.contains("its ADD fails"), "{code} {text}");
    let (code, text) = status(json!({"host": ["link add dev{N} type vteh"]}), good, &plain);
    assert!(code == 2 && text.contains("vteh"), "{code} {text}");
    let lacks =
        json!({"needs": ["link add x type nonsense"], "host": ["link add dev{N} type nonsense"]});
    assert_eq!(status(lacks.clone(), good, &plain).0, 3);
    // What is below the level does not count.
    let loud = "take\nis ADD && echo '{\"cniVersion\":\"1.1.0\"}'\nis DEL && echo x\nexit 0";
    for (level, code) in [("must", 0), ("should", 0), ("quality", 1)] {
        assert_eq!(
            status(
                json!({}),
                loud,
                &["--only", "success_is_silent", "--level", level]
            )
            .0,
            code
        );
    }
    // One of two was asked nothing.
    let files = [lacks, json!({})].map(|more| {
        let mut description =
            json!({"kind": "main", "conf": conf, "program": directory.path().join("alone")});
        description
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let file = directory
            .path()
            .join(format!("two-{}.json", more.to_string().len()));
        fs::write(&file, description.to_string()).unwrap();
        file
    });
    let output = suite()
        .args(plain)
        .arg("--describe")
        .args(files)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    // What cannot be executed.
    let other = directory.path().join("other");
    let file = directory.path().join("other.json");
    fs::write(&file, json!({"kind": "main", "conf": conf}).to_string()).unwrap();
    for (text, mode) in [("exit 0", 0o755), ("#!/bin/sh\nexit 0", 0o644)] {
        fs::write(&other, text).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(mode)).unwrap();
        let output = suite()
            .arg("--describe")
            .arg(&file)
            .arg("--plugin")
            .arg(&other)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && told.contains("execute"),
            "{output:?}"
        );
    }
}

/// A plugin whose description has this beside it: the exit status, and what is on stderr.
fn with_beside(
    directory: &Path,
    beside: Value,
    script: &str,
    arguments: &[&str],
) -> (Output, String) {
    let description = json!({"kind": "ipam", "conf": {"ipam": {"type": "x"}}, "stays": ["ready", "pid"], "beside": beside});
    let good = "is DEL && rm -f /run/$CNI_CONTAINERID\nis ADD && >/run/$CNI_CONTAINERID && echo '{\"cniVersion\":\"1.1.0\",\"ips\":[]}'\nexit 0";
    let script = format!("take\n{script}\n{good}");
    let arguments = [&["--format", "json"], arguments].concat();
    let output = judged_alone(directory, &description, &script, &arguments);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{:?} {told}", output.status.code());
    (output, told)
}

#[test]
fn what_runs_beside_a_plugin_is_there_and_ends_with_the_check() {
    let Some(_) = plugins("what_runs_beside") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Nobody else sleeps as long.
    let time = format!("81{}", std::process::id());
    let sleeps = format!("sleep 0.2; touch {{DIR}}/ready; exec sleep {time}");
    let sleeps = json!({"command": ["sh", "-c", sleeps], "ready": "{DIR}/ready"});
    let is_ready = "is VERSION || [ -e /dev/shm/conformance/ready ] || bad 11";
    let only = ["--only", "add_succeeds"];
    let (output, _) = with_beside(directory.path(), sleeps, is_ready, &only);
    assert_eq!(checks(&output)[0]["outcome"], "pass", "{output:?}");
    assert_eq!(running(&time), Vec::<String>::new());
}

#[test]
fn what_does_not_run_beside_a_plugin_is_told() {
    let Some(_) = plugins("what_does_not_run_beside") else {
        return;
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let time = format!("82{}", std::process::id());
    let runs = |script: &str| json!({"command": ["sh", "-c", script], "ready": "{DIR}/ready"});
    let wrong = |beside: Value, script: &str, only: &str, text: &str| {
        let (output, told) = with_beside(directory.path(), beside, script, &["--only", only]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(told.contains(text), "{told}");
        assert_eq!(running(&time), Vec::<String>::new());
    };
    let never = runs(&format!("echo waits >&2; exec sleep {time}"));
    let text = "beside: sh is not ready after 10 s: there is no /dev/shm/conformance/ready (waits)";
    wrong(never, "", "add_succeeds", text);
    let deaf = json!({"command": ["sleep", time], "ready": "127.0.0.1:6443"});
    let text = "beside: sleep is not ready after 10 s: it does not listen to 127.0.0.1:6443";
    wrong(deaf, "", "add_succeeds", text);
    let text = "beside: sh ended with exit status 3 (no luck), before it was ready";
    wrong(runs("echo no luck >&2; exit 3"), "", "add_succeeds", text);
    wrong(
        json!({"command": ["./absent"], "ready": "/x"}),
        "",
        "add_succeeds",
        "beside: cannot execute ./absent",
    );
    // Once the checks are under way.
    let runs = runs(&format!(
        "echo $$ >{{DIR}}/pid; touch {{DIR}}/ready; exec sleep {time}"
    ));
    let kills = "is CHECK && { p=$(cat /dev/shm/conformance/pid); kill -KILL $p; while kill -0 $p; do sleep 0.1; done; }";
    let text = "check_after_add: beside: sh was ended by signal 9, during a check";
    wrong(runs, kills, "check_after_add", text);
    for (beside, text) in [
        (
            json!({"command": [], "ready": "/x"}),
            "beside.command: expected a program",
        ),
        (
            json!({"command": ["x"], "ready": "6443"}),
            "beside.ready: \"6443\": expected an address",
        ),
        (json!({"command": ["x"]}), "missing field `ready`"),
    ] {
        wrong(beside, "", "add_succeeds", text);
    }
}

#[test]
fn files_are_those_of_the_check() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let outside = directory.path().join("host.conf");
    let up = format!("/run/..{}", outside.display());
    for path in [
        outside.to_str().unwrap(),
        &up,
        "/run",
        "run/x",
        "{DIR}/../../etc/x",
    ] {
        let file = directory.path().join("described.json");
        fs::write(
            &file,
            json!({"kind": "main", "conf": {"type": "x"}, "files": {path: "x"}}).to_string(),
        )
        .unwrap();
        let output = suite()
            .arg("--describe")
            .arg(file)
            .args(["--plugin", "/bin/true"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{path}: {text}");
        assert!(
            text.contains(&format!("files: {path}: expected a path")),
            "{path}: {text}"
        );
    }
    assert!(!outside.exists());
}

#[test]
fn wrong_usage_is_told() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let misspelt = directory.path().join("misspelt.json");
    let known = json!({"kind": "main", "conf": {"type": "x"}, "known": {"del_twise": "it does"}});
    fs::write(&misspelt, known.to_string()).unwrap();
    for arguments in [
        &["--only", "no such check"][..],
        &["--describe", "/nonexistent"],
        &[
            "--describe",
            misspelt.to_str().unwrap(),
            "--plugin",
            "/bin/true",
        ],
        &["--list", "--harm", "none at all"],
        &["--nonsense"],
        &[],
    ] {
        let output = suite().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
}
