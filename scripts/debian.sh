# shellcheck shell=bash disable=SC2154
# Packages of Debian, unpacked into a folder: nothing is installed. Sourced behind lib.sh.

readonly debian_suite=bookworm
readonly debian_keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# prepare_apt FOLDER ARCHITECTURE...: an apt of our own below FOLDER, with its lists, its sources, and a database in
# which nothing is installed, so that a package comes with all that it needs and works on any host. What it says goes to
# $log. Exit status 3: it cannot be had.
prepare_apt() {
    [[ ! ${APT_CONFIG:-} ]] || return 0
    has apt-get || cannot "no apt-get here, which fetches Debian's packages"
    needs "$debian_keyring"
    local apt=$1 mirror
    shift
    mirror=$(debian_mirror)
    [[ $mirror ]] || cannot "apt has no Debian mirror here: name one in RAIL_DEBIAN_MIRROR"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    : >"$apt/status"
    printf "deb [signed-by=$debian_keyring] $mirror %s main\n" "$debian_suite" "$debian_suite-backports" \
        >"$apt/sources.list"
    cat >"$apt/apt.conf" <<-EOF
	Dir::Etc::sourcelist "$apt/sources.list";
	Dir::Etc::sourceparts "/dev/null";
	Dir::Etc::preferencesparts "/dev/null";
	Dir::State "$apt";
	Dir::State::lists "$apt/lists";
	Dir::State::status "$apt/status";
	Dir::Cache "$apt/cache";
	APT::Architecture "$1";
	APT::Architectures { $(printf '"%s"; ' "$@")};
	APT::Default-Release "$debian_suite-backports";
	APT::Sandbox::User "";
	Acquire::Languages "none";
	Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
	EOF
    export APT_CONFIG=$apt/apt.conf
    # It succeeds, too, when nothing came.
    apt-get update >>"$log" 2>&1 || true
    apt-cache show base-files >/dev/null 2>&1 || cannot "cannot fetch Debian's packages from $mirror" log
}

# debian_mirror: the one of RAIL_DEBIAN_MIRROR, or else the host's own, if it is a Debian.
debian_mirror() {
    if [[ ${RAIL_DEBIAN_MIRROR:-} ]]; then
        printf '%s' "$RAIL_DEBIAN_MIRROR"
    else
        apt-get update --print-uris 2>/dev/null | sed -nE "s|^'(.*/debian)/+dists/.*|\1|p" | sort -u | awk 'NR == 1'
    fi
}

# unpack FOLDER PACKAGE...: downloads packages (NAME or NAME=VERSION) and unpacks them into FOLDER.
unpack() {
    local into=$1 debs=$1.debs deb
    shift
    rm -rf "$debs"
    mkdir -p "$debs" "$into"
    (cd "$debs" && apt-get download "$@") >>"$log" 2>&1 || cannot "cannot download $*" log
    for deb in "$debs"/*.deb; do
        # A caller that uses this in an `if` has switched errexit off.
        dpkg-deb -x "$deb" "$into" || cannot "cannot unpack ${deb##*/}"
    done
    rm -rf "$debs"
}

# with_dependencies PACKAGE...: prints them and every package that they need, down to the C library, as NAME=VERSION.
with_dependencies() {
    local packages
    packages=$(apt-get install -y --print-uris --no-install-recommends "$@" 2>>"$log" |
        sed -n "s/^'[^']*' \([^_]*\)_\([^_]*\)_.*/\1=\2/p" | sed 's/%3a/:/')
    [[ $packages ]] || cannot "apt does not know how to install $*" log
    printf '%s\n' "$packages"
}

# cannot WHY [log]: ends with status 3, and names the log where there is more.
cannot() { die "$1${2:+ (see $log)}" 3; }
