#!/usr/bin/env bash
# RDMA traffic of two pods with eight rails each: all pairs of rails, at once after ADD, in shared mode.
# Runs in the machine: scripts/lab --vfs 2 --rdma-shared tests/lab/roce-shared.sh
# lab: --rails 8 --vfs 2 --rdma-shared --timeout 600
# The cases are those of exclusive mode.
source "$(dirname "${BASH_SOURCE[0]}")/roce.sh"
