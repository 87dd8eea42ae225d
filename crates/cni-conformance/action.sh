#!/usr/bin/env bash
# What action.yml runs: judges the plugins of descriptions, and leaves reports and scripts in REPORTS.
#
# usage: DESCRIPTIONS='FILE...' REPORTS=DIRECTORY [PLUGIN=FILE] [PLUGINS=DIRECTORIES] [PROFILE=spec] [LEVEL=must] [HARM=leak] [BASELINE=FILE]
#        action.sh
#
# The program is built from the crate in this folder, unless CNI_CONFORMANCE names one. Exit status: that of the program.
set -euo pipefail

tool=${CNI_CONFORMANCE:-}
if [[ ! $tool ]]; then
    cargo install --quiet --locked --path "$(dirname "${BASH_SOURCE[0]}")" --root "${RUNNER_TEMP:?}/cni-conformance"
    tool=$RUNNER_TEMP/cni-conformance/bin/cni-conformance
fi
read -ra files <<<"$DESCRIPTIONS"
arguments=(--profile "${PROFILE:-spec}" --level "${LEVEL:-must}" --harm "${HARM:-leak}" --reports "$REPORTS" --replay "$REPORTS/replay")
[[ ! ${PLUGIN:-} ]] || arguments+=(--plugin "$PLUGIN")
[[ ! ${PLUGINS:-} ]] || arguments+=(--path "$PLUGINS")
[[ ! ${BASELINE:-} ]] || arguments+=(--baseline "$BASELINE")
as_root=()
((EUID == 0)) || as_root=(sudo)
status=0
"${as_root[@]}" "$tool" "${arguments[@]}" --describe "${files[@]}" || status=$?
# Where there is a page of the run, it begins with the scores.
[[ ! ${GITHUB_STEP_SUMMARY:-} || ! -e $REPORTS/scores.md ]] || cat "$REPORTS/scores.md" >>"$GITHUB_STEP_SUMMARY"
exit "$status"
