# shellcheck shell=bash disable=SC2034,SC2154
# The parts of scripts/cluster. Sourced behind scripts/lib.sh, inside of the cluster's namespaces and by its tests.
#
#            control plane: 192.0.2.1, and 10.96.0.1 for the Service of the API
#                 | bridge mgmt
#         +-------+--------+
#   worker-gpu-0        worker-gpu-1     192.0.2.10 and .11; pods 10.244.0.0/24 and 10.244.1.0/24
#     vf0 .. vf7          vf0 .. vf7     veths, which a sysfs of files shows as VFs
#         +-------+--------+
#               leaf                     a namespace that routes: the gateway of every rail

# The programs that scripts/callers builds for it.
readonly kubernetes=kubernetes-${RAIL_CLUSTER_KUBERNETES:-1.34.2}
readonly callers=("$kubernetes" containerd-2.4.2 runc-1.5.2 multus-4.3.0 multus-thick-4.3.0 cri busybox)
# Names that conf/fabric.yaml has.
readonly nodes=(worker-gpu-0 worker-gpu-1)
readonly own_group=rail-cluster
# Of version 2 of control groups: what a kubelet needs.
readonly controllers=(cpu cpuset memory pids)
# Of version 2: where the processes of a container are meanwhile.
readonly aside=/sys/fs/cgroup/$own_group-aside
readonly cluster=/run/cluster
# Only the plugins' own sysfs is made of files.
readonly sysfs=/run/sys
# The folder of containerd, kubelet and the like on a node.
readonly programs=/opt/kubernetes/bin
# Factor of the machine's slowness, by which waits are longer.
readonly patience=${RAIL_CLUSTER_PATIENCE:-1}
readonly pause_image=rail-cni/pause:1
# The image that conf/pod.yaml names. Ours has no PyTorch.
readonly pod_image=docker.io/pytorch/pytorch:latest

# --- control groups ----------------------------------------------------------------------------------------------
#
# On version 1 the processes of a node are in its group of each hierarchy. On version 2 a group hands controllers to the
# groups below it only while it has no process itself. So they are in the group `host` of the node's group, beside which
# the kubelet makes its own.

inner=$(grep -qv '^0::' /proc/self/cgroup || printf '/host')

# Prints the folder of each hierarchy in which the cluster makes its groups: on version 1 the group of this process, on
# version 2 the root, for no group of a systemd may be handed on.
hierarchies() {
    local names path
    [[ ! $inner ]] || { printf '/sys/fs/cgroup\n' && return; }
    while IFS=: read -r _ names path; do
        [[ ! $names ]] || printf '%s\n' "/sys/fs/cgroup/${names#name=}${path%/}"
    done </proc/self/cgroup
}

# make_groups NAME: the cluster's own in each hierarchy. Prints their folders.
make_groups() {
    local folder
    hierarchies | while read -r folder; do
        make_group "$folder/$1"
        [[ ! $inner ]] || hand_on "$folder/$1" >/dev/null
        printf '%s\n' "$folder/$1"
    done
}

make_group() {
    local file
    mkdir "$1"
    # On version 1, a new group of cpuset is empty, and takes no process.
    for file in cpuset.cpus cpuset.mems; do
        [[ ! -e ${1%/*}/$file ]] || cat "${1%/*}/$file" >"$1/$file"
    done
}

# hand_on FOLDER: groups below it may have all its controllers. Prints those that they could not have before.
hand_on() {
    local controller had
    had=" $(<"$1/cgroup.subtree_control") "
    for controller in $(<"$1/cgroup.controllers"); do
        [[ $had != *" $controller "* ]] || continue
        { printf '+%s' "$controller" >"$1/cgroup.subtree_control"; } 2>/dev/null && printf '%s\n' "$controller"
    done
    for controller in "${controllers[@]}"; do
        [[ " $(<"$1/cgroup.subtree_control") " == *" $controller "* ]] ||
            die "the control group $1 cannot hand on its controller $controller" 3
    done
}

# prepare_root: on version 2, the root hands on what the cluster needs. Sets `lent` to what it did not before.
prepare_root() {
    [[ $inner ]] || return 0
    # In a container, the root that is seen is another's group, and may have processes.
    if [[ -e /sys/fs/cgroup/cgroup.type && $(</sys/fs/cgroup/cgroup.procs) ]]; then
        mkdir -p "$aside"
        move_processes /sys/fs/cgroup "$aside"
    fi
    lent=$(hand_on /sys/fs/cgroup) || exit
}

# restore_root: it is as it was, unless another cluster runs.
restore_root() {
    local controller
    for controller in ${lent:-}; do
        { printf -- '-%s' "$controller" >/sys/fs/cgroup/cgroup.subtree_control; } 2>/dev/null || true
    done
    [[ ! -d $aside ]] || { move_processes "$aside" /sys/fs/cgroup && rmdir "$aside" 2>/dev/null; } || true
}

# move_processes FROM TO: they start others meanwhile.
move_processes() {
    local tries process processes
    for ((tries = 0; tries < 20; tries++)); do
        processes=$(<"$1/cgroup.procs")
        [[ $processes ]] || return 0
        for process in $processes; do
            { printf '%s\n' "$process" >"$2/cgroup.procs"; } 2>/dev/null || true
        done
    done
}

# make_node_groups NODE: what a node before its last reboot had in them is gone.
make_node_groups() {
    local folder
    while read -r folder; do
        remove_groups "$folder/$1"
        make_group "$folder/$1"
        [[ ! $inner ]] || mkdir "$folder/$1$inner"
    done <"$cluster/groups"
}

# join_group NODE: this shell and what it starts. A node's first process is in the group that is the node's root, until
# it has namespaces.
join_group() {
    local folder
    while read -r folder; do
        printf '%s\n' "$BASHPID" >"$folder/$1/cgroup.procs"
    done <"$cluster/groups"
}

# remove_groups FOLDER...: they are empty. A process that was killed may still be in one for a moment.
remove_groups() {
    local folder tries
    for folder in "$@"; do
        for ((tries = 0; tries < 50; tries++)); do
            [[ -d $folder ]] || break
            find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
        done
    done
}

# Of a cluster that was killed.
remove_dead_groups() {
    local folder
    while read -r folder; do
        for folder in "$folder/$own_group".*; do
            [[ ! -d $folder || -d /proc/${folder##*.} ]] || remove_groups "$folder"
        done
    done < <(hierarchies)
}

# Mounts the control groups of a node: its own group is the root.
mount_groups() {
    local names name
    if [[ $inner ]]; then
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        hand_on /sys/fs/cgroup >/dev/null
        return
    fi
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    while IFS=: read -r _ names _; do
        [[ $names ]] || continue
        name=${names#name=}
        mkdir "/sys/fs/cgroup/$name"
        [[ $names == "$name" ]] || names=none,name=$name
        mount -t cgroup -o "$names" cgroup "/sys/fs/cgroup/$name"
    done </proc/self/cgroup
}

# --- the machine below it ----------------------------------------------------------------------------------------

# A /run of its own for the control plane, with the programs, and the network that connects all.
furnish() {
    local program
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p /run/netns "$cluster"/{bin,log,pki,home,nodes,images}
    for program in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
        ln -s "$scripts_callers/$kubernetes/bin/kube" "$cluster/bin/$program"
    done
    for program in "$scripts_callers"/{containerd-2.4.2,runc-1.5.2}/bin/* "$target/image/root/rail-agent"; do
        ln -s "$program" "$cluster/bin/"
    done
    printf '%s\n' "$groups" >"$cluster/groups"
    ln -s "$root/scripts/cluster.d/on" "$cluster/bin/on"
    export PATH=$cluster/bin:$PATH HOME=$cluster/home KUBECONFIG=$cluster/admin.kubeconfig
    ip link set lo up
    ip link add mgmt type bridge
    ip addr add 192.0.2.1/24 dev mgmt
    # The API server is behind the address of its Service without a proxy.
    ip addr add 10.96.0.1/32 dev lo
    ip link set mgmt up
    printf '1\n' >/proc/sys/net/ipv4/ip_forward
    ip netns add leaf
    ip netns exec leaf "$BASH" -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
}

# kubectl, which waits in proportion, too.
kubectl() {
    local -a arguments=("$@")
    local i
    for ((i = 1; i < $#; i++)); do
        [[ ${arguments[i - 1]} != --timeout ]] || arguments[i]=$((${arguments[i]%s} * patience))s
    done
    command kubectl "${arguments[@]}"
}

# await WHAT SECONDS COMMAND...: until it succeeds.
await() {
    local what=$1 until=$((SECONDS + $2 * patience))
    shift 2
    until "$@" >"$cluster/awaited" 2>&1; do
        ((SECONDS < until)) || { printf '%s: not within the time\n' "$what" >&2 && tail -n 5 "$cluster/awaited" >&2 && return 1; }
        sleep 0.1
    done
}

# --- the control plane -------------------------------------------------------------------------------------------

# certificate NAME USER [GROUP]: a key and a certificate of the cluster's own authority.
certificate() {
    local file=$cluster/pki/$1
    openssl ecparam -name prime256v1 -genkey -noout -out "$file.key"
    openssl req -new -key "$file.key" -subj "${3:+/O=$3}/CN=$2" |
        openssl x509 -req -CA "$cluster/pki/ca.crt" -CAkey "$cluster/pki/ca.key" -CAcreateserial -days 2 -out "$file.crt" \
            -extfile <(printf 'subjectAltName=%s\n' "${subject_names:-DNS:$1}") 2>/dev/null
}

# kubeconfig NAME USER [GROUP]: for a client of the API.
kubeconfig() {
    local pki=$cluster/pki
    certificate "$@"
    cat >"$cluster/$1.kubeconfig" <<-END
	apiVersion: v1
	kind: Config
	current-context: it
	contexts: [{name: it, context: {cluster: it, user: it}}]
	clusters:
	- name: it
	  cluster: {server: "https://192.0.2.1", certificate-authority-data: $(base64 -w 0 "$pki/ca.crt")}
	users:
	- name: it
	  user:
	    client-certificate-data: $(base64 -w 0 "$pki/$1.crt")
	    client-key-data: $(base64 -w 0 "$pki/$1.key")
	END
}

make_pki() {
    local pki=$cluster/pki node
    openssl ecparam -name prime256v1 -genkey -noout -out "$pki/ca.key"
    openssl req -x509 -new -key "$pki/ca.key" -subj /CN=rail-cluster -days 2 -out "$pki/ca.crt"
    openssl ecparam -name prime256v1 -genkey -noout -out "$pki/accounts.key"
    subject_names=IP:192.0.2.1,IP:10.96.0.1,DNS:kubernetes.default.svc certificate apiserver kube-apiserver
    certificate apiserver-kubelet kube-apiserver system:masters
    kubeconfig admin admin system:masters
    kubeconfig controllers system:kube-controller-manager
    kubeconfig scheduler system:kube-scheduler
    kubeconfig multus multus
    for node in "${nodes[@]}"; do kubeconfig "$node" "system:node:$node" system:nodes; done
}

# program NAME [ARGUMENT...]: a process of the control plane.
program() {
    "$1" "${@:2}" </dev/null >>"$cluster/log/$1.log" 2>&1 &
    printf '%s\n' "$!" >"$cluster/$1.pid"
}

start_etcd() {
    program etcd --data-dir "$cluster/etcd" --unsafe-no-fsync --log-level warn
}

# Policies that change objects are a beta that is off in Kubernetes 1.34, and 1.32 does not have this version of them.
mutating=(--feature-gates MutatingAdmissionPolicy=true --runtime-config admissionregistration.k8s.io/v1beta1=true)
[[ $kubernetes != kubernetes-1.32.* ]] || mutating=()

start_apiserver() {
    local pki=$cluster/pki
    program kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address 192.0.2.1 --secure-port 443 \
        --cert-dir "$pki" --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
        --client-ca-file "$pki/ca.crt" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
        "${mutating[@]}" \
        --kubelet-client-certificate "$pki/apiserver-kubelet.crt" --kubelet-client-key "$pki/apiserver-kubelet.key" \
        --kubelet-preferred-address-types InternalIP --service-cluster-ip-range 10.96.0.0/12 --allow-privileged \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$pki/accounts.key" \
        --service-account-signing-key-file "$pki/accounts.key"
}

start_control_plane() {
    local pki=$cluster/pki
    make_pki
    start_etcd
    start_apiserver
    await "the API server" 120 kubectl get --raw /readyz
    # Without its own account for each, the controller that removes the taint of a new node may not.
    program kube-controller-manager --kubeconfig "$cluster/controllers.kubeconfig" --leader-elect=false \
        --cert-dir "$pki" --use-service-account-credentials --root-ca-file "$pki/ca.crt" \
        --service-account-private-key-file "$pki/accounts.key"
    program kube-scheduler --kubeconfig "$cluster/scheduler.kubeconfig" --leader-elect=false --cert-dir "$pki"
    kubectl apply -f "$root/scripts/cluster.d/crds.yaml" -f "$root/scripts/cluster.d/multus.yaml" >"$cluster/log/objects"
}

# --- images --------------------------------------------------------------------------------------------------------

# image FILE NAME FOLDER COMMAND: an image whose files are those of FOLDER.
image() {
    local new=$cluster/images/new layer config manifest
    rm -rf "$new"
    mkdir -p "$new/blobs/sha256"
    tar -C "$3" --owner 0 --group 0 --numeric-owner -cf "$new/layer" .
    layer=$(blob "$new" layer)
    jq -n --arg command "$4" --arg layer "$layer" --arg arch "$(machine)" '{architecture: $arch, os: "linux",
        config: {Entrypoint: [$command], Env: ["PATH=/bin"]}, rootfs: {type: "layers", diff_ids: [$layer]}}' >"$new/config"
    config=$(blob "$new" config)
    jq -n --argjson config "$(described "$new" "$config" application/vnd.oci.image.config.v1+json)" \
        --argjson layer "$(described "$new" "$layer" application/vnd.oci.image.layer.v1.tar)" '{schemaVersion: 2,
        mediaType: "application/vnd.oci.image.manifest.v1+json", config: $config, layers: [$layer]}' >"$new/manifest"
    manifest=$(blob "$new" manifest)
    jq -n --argjson manifest "$(described "$new" "$manifest" application/vnd.oci.image.manifest.v1+json)" \
        --arg name "$2" '{schemaVersion: 2, manifests: [$manifest + {annotations: {"io.containerd.image.name": $name}}]}' \
        >"$new/index.json"
    printf '{"imageLayoutVersion": "1.0.0"}\n' >"$new/oci-layout"
    tar -C "$new" -cf "$1" .
}

# blob FOLDER FILE: moves it to where its digest is its name, and prints the digest.
blob() {
    local digest
    digest=$(sha256sum "$1/$2" | cut -d ' ' -f 1)
    mv "$1/$2" "$1/blobs/sha256/$digest"
    printf 'sha256:%s\n' "$digest"
}

# described FOLDER DIGEST TYPE: what an image says of a blob.
described() {
    jq -n --arg digest "$2" --arg type "$3" --argjson size "$(stat -c %s "$1/blobs/sha256/${2#sha256:}")" \
        '{mediaType: $type, digest: $digest, size: $size}'
}

machine() { case $(uname -m) in x86_64) printf 'amd64' ;; aarch64) printf 'arm64' ;; *) uname -m ;; esac }

# A pause, and a worker with busybox whose torchrun only waits.
make_images() {
    local files=$cluster/images/files command
    mkdir -p "$files"/{pause,pod/bin,pod/tmp}
    cp "$scripts_callers/cri/bin/pause" "$files/pause/"
    image "$cluster/images/pause.tar" "docker.io/$pause_image" "$files/pause" /pause
    cp "$scripts_callers/busybox/bin/busybox" "$files/pod/bin/"
    for command in sh ip ping sleep cat ls; do ln -s busybox "$files/pod/bin/$command"; done
    # shellcheck disable=SC2016
    printf '#!/bin/sh\ntrap "exit 0" TERM\nwhile :; do sleep 3600 & wait $!; done\n' >"$files/pod/bin/torchrun"
    chmod 755 "$files/pod/bin/torchrun"
    image "$cluster/images/pod.tar" "$pod_image" "$files/pod" /bin/torchrun
}

# --- a node --------------------------------------------------------------------------------------------------------

# become NODE COMMAND...: this process becomes the command, in all namespaces and the control groups of the node.
become() {
    local keeper
    keeper=$(<"$cluster/nodes/$1/keeper")
    join_group "$1$inner"
    export PATH=$programs:$PATH
    exec nsenter -t "$keeper" -m -n -u -i -C "--pid=/proc/$keeper/ns/pid_for_children" "${@:2}"
}

# on NODE COMMAND...
on() (become "$@")

# number_of NODE
number_of() { printf '%s\n' "${1##*-}"; }

# boot NODE: its namespaces, cables and programs. What it had on disk is there again.
boot() {
    local disk=$cluster/nodes/$1 number keeper
    number=$(number_of "$1")
    mkdir -p "$disk"
    make_node_groups "$1"
    (
        join_group "$1"
        exec unshare -C "$BASH" "$root/scripts/cluster.d/node" "$1" "$disk"
    ) </dev/null >>"$cluster/log/$1.log" 2>&1 &
    keeper=$!
    printf '%s\n' "$keeper" >"$disk/keeper"
    await "$1" 20 on "$1" test -e /run/booted
    ip link add "mgmt$number" type veth peer name mgmt0 netns "$keeper"
    ip link set "mgmt$number" master mgmt up
    on "$1" ip addr add "192.0.2.1$number/24" dev mgmt0
    on "$1" ip link set mgmt0 up
    on "$1" ip route add default via 192.0.2.1
    ip route replace "10.244.$number.0/24" via "192.0.2.1$number"
    add_rails "$1" "$keeper"
    start_containerd "$1"
    load_images "$1"
    # Before the kubelet, which admits the pods from before the boot as soon as it starts.
    [[ ! -e $disk/opt/cni/bin/railctl ]] || start_agent "$1"
    start_kubelet "$1"
}

# pull_the_plug NODE: all its processes die at once, and its memory, network and /run are gone.
pull_the_plug() {
    local keeper first number port
    keeper=$(<"$cluster/nodes/$1/keeper") number=$(number_of "$1")
    first=$(pgrep -P "$keeper")
    kill -9 "$keeper"
    while [[ -d /proc/$first ]]; do sleep 0.05; done
    # The kernel removes them, too, but later.
    ip link del "mgmt$number" 2>/dev/null || true
    for port in $(ip -n leaf -br link | sed -nE "s/^(n$number-[rp][0-9]+)@?.*/\1/p"); do
        ip -n leaf link del "$port" 2>/dev/null || true
    done
}

# Each PF of conf/node.json as "RAIL ADDRESS".
pfs() { jq -r '.rails[] | "\(.rail) \(.pf)"' "$root/conf/node.json"; }

# show_device SYSFS ADDRESS NETDEV ID: a PCI function below a root of its own bus, as a kernel would show it.
show_device() {
    local at=$1/devices/pci${2%:*}/$2
    mkdir -p "$at/net/$3" "$1"/bus/pci/{devices,drivers/mlx5_core} "$1/class/net"
    printf 'pci:v000015B3d0000%ssv000015B3sd00000001bc02sc00i00\n' "$4" >"$at/modalias"
    ln -s ../../../bus/pci/drivers/mlx5_core "$at/driver"
    ln -s ../.. "$at/net/$3/device"
    ln -s "../../../devices/pci${2%:*}/$2" "$1/bus/pci/devices/$2"
    ln -s "../../devices/pci${2%:*}/$2/net/$3" "$1/class/net/$3"
}

# add_rails NODE KEEPER: the VF of each rail with its cable to the leaf, and the sysfs that shows them. The addresses of
# the leaf ports are those of the plan.
add_rails() {
    local number rail pf vf at=$cluster/nodes/$1/sys
    number=$(number_of "$1")
    rm -rf "$at"
    while read -r rail pf; do
        vf=${pf%.0}.2
        show_device "$at" "$pf" "pf$rail" 1021
        show_device "$at" "$vf" "vf$rail" 101E
        ln -s "../$pf" "$at/bus/pci/devices/$vf/physfn"
        ln -s "../$vf" "$at/bus/pci/devices/$pf/virtfn0"
        printf '8\n' >"$at/bus/pci/devices/$pf/sriov_totalvfs"
        printf '1\n' >"$at/bus/pci/devices/$pf/sriov_numvfs"
        ip link add "n$number-r$rail" netns leaf mtu 9216 type veth peer name "vf$rail" netns "$2" mtu 1500
        ip link add "n$number-p$rail" netns leaf mtu 9216 type veth peer name "pf$rail" netns "$2" mtu 9216
        ip -n leaf link set "n$number-r$rail" up
        ip -n leaf link set "n$number-p$rail" up
        on "$1" ip link set "pf$rail" up
    done < <(pfs)
    on "$1" mkdir "$sysfs"
    tar -C "$at" -c . | on "$1" tar -C "$sysfs" -x
    while IFS=, read -r rail gateway; do
        ip -n leaf addr add "$gateway/31" dev "n$number-r$rail"
    done < <("$target/static/railctl" plan "$root/conf/fabric.yaml" --to csv |
        awk -F, -v node="$1" '$1 == node { print $2 "," $7 }')
}

# service NODE NAME COMMAND...: starts a daemon of the node, whose number in the node is in /run/NAME.pid there. It keeps
# nothing open of who starts it.
service() {
    (
        exec </dev/null >>"$cluster/log/$1-$2.log" 2>&1
        # shellcheck disable=SC2016
        become "$1" setsid "$BASH" -c 'echo $$ >"/run/$0.pid" && exec "$@"' "${@:2}"
    ) &
}

# crash NODE NAME: kills a daemon as a fault of it would, and waits until it has ended, with its locks.
# shellcheck disable=SC2016
crash() {
    on "$1" "$BASH" -c 'pid=$(<"/run/$0.pid") && kill -9 "$pid" && while [[ -e /proc/$pid ]]; do sleep 0.02; done &&
        rm "/run/$0.pid"' "$2"
}

start_containerd() {
    on "$1" mkdir -p /etc/containerd
    # Without CAP_SYS_RESOURCE, which a container may lack, runc cannot lower the score of a process.
    on "$1" tee /etc/containerd/config.toml >/dev/null <<-END
	version = 3
	[plugins.'io.containerd.cri.v1.images']
	snapshotter = 'overlayfs'
	[plugins.'io.containerd.cri.v1.images'.pinned_images]
	sandbox = '$pause_image'
	[plugins.'io.containerd.cri.v1.runtime']
	restrict_oom_score_adj = true
	[plugins.'io.containerd.cri.v1.runtime'.cni]
	bin_dirs = ['/opt/cni/bin']
	conf_dir = '/etc/cni/net.d'
	use_internal_loopback = true
	[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
	runtime_type = 'io.containerd.runc.v2'
	END
    service "$1" containerd containerd
    await "containerd of $1" 60 on "$1" ctr version
}

load_images() {
    local file
    for file in pause pod; do
        on "$1" ctr --namespace k8s.io images import --local - <"$cluster/images/$file.tar" >>"$cluster/log/$1-images.log" 2>&1
    done
}

# start_kubelet NODE [OPTION...]
start_kubelet() {
    local number
    number=$(number_of "$1")
    on "$1" mkdir -p /etc/kubernetes
    on "$1" tee /etc/kubernetes/ca.crt >/dev/null <"$cluster/pki/ca.crt"
    on "$1" tee /etc/kubernetes/kubeconfig >/dev/null <"$cluster/$1.kubeconfig"
    on "$1" tee /etc/kubernetes/kubelet.yaml >/dev/null <<-END
	apiVersion: kubelet.config.k8s.io/v1beta1
	kind: KubeletConfiguration
	authentication: {anonymous: {enabled: false}, x509: {clientCAFile: /etc/kubernetes/ca.crt}}
	authorization: {mode: Webhook}
	cgroupDriver: cgroupfs
	failCgroupV1: false
	containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
	evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
	failSwapOn: false
	localStorageCapacityIsolation: false
	protectKernelDefaults: true
	resolvConf: ""
	volumePluginDir: /var/lib/kubelet/volume-plugins
	END
    service "$1" kubelet kubelet --config /etc/kubernetes/kubelet.yaml --kubeconfig /etc/kubernetes/kubeconfig \
        --hostname-override "$1" --node-ip "192.0.2.1$number" "${@:2}"
}

# start_agent NODE [RESOURCE [OPTION...]]: as a service of the node, which offers the devices, unless the name of the
# resource is empty. It has another view of files than process 1, as in a container.
start_agent() {
    local resource='nvidia.com/rail-{rail}'
    (($# < 2)) || resource=$2
    on "$1" tee /etc/kubernetes/agent.kubeconfig >/dev/null <"$cluster/admin.kubeconfig"
    service "$1" rail-agent env KUBECONFIG=/etc/kubernetes/agent.kubeconfig unshare -m rail-agent run --node "$1" \
        --plan-from none --resource "$resource" "${@:3}"
}

# give_gpus NODE: that do not exist.
give_gpus() { kubectl patch node "$1" --subresource status --type merge -p '{"status": {"capacity": {"nvidia.com/gpu": "8"}}}'; }

# install_multus NODE: with upstream's bridge for eth0.
install_multus() {
    local number
    number=$(number_of "$1")
    on "$1" mkdir -p /opt/cni/bin /etc/cni/net.d/multus.d
    on "$1" cp "$scripts_callers/multus-4.3.0/bin/multus" "$RAIL_PEERS"/{bridge,host-local} /opt/cni/bin/
    on "$1" tee /etc/cni/net.d/multus.d/multus.kubeconfig >/dev/null <"$cluster/multus.kubeconfig"
    on "$1" tee /etc/cni/net.d/00-multus.conf >/dev/null <<-END
	{"cniVersion": "1.1.0", "name": "multus-cni-network", "type": "multus",
	 "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig",
	 "delegates": [{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0",
	  "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.$number.0/24"}]],
	   "routes": [{"dst": "0.0.0.0/0"}]}}]}]}
	END
}

# install_rails NODE: the steps of README.md that are done on each node. What else installs it takes the place of this
# function alone.
install_rails() {
    on "$1" env CARGO_TARGET_DIR=/run/built "RAIL_CNI_FROM=$target/static" "$root/scripts/install" --prefix /run/local
    jq --arg node "$1" --arg sysfs "$sysfs" '. + {nodeName: $node, sysfsRoot: $sysfs}' "$root/conf/node.json" |
        on "$1" tee /etc/rail-cni/node.json >/dev/null
    on "$1" /opt/cni/bin/railctl plan "$root/conf/fabric.yaml" --to store
    on "$1" /opt/cni/bin/railctl doctor
    start_agent "$1"
}

# for_each_node COMMAND: with its name, on all at the same time.
for_each_node() {
    local node status=0
    local -a pids=()
    for node in "${nodes[@]}"; do
        "$@" "$node" &
        pids+=("$!")
    done
    for node in "${pids[@]}"; do wait "$node" || status=$?; done
    return "$status"
}

# Is it ready, with all devices?
node_is_ready() {
    kubectl get node "$1" -o json | jq -e '([.status.conditions[] | select(.type == "Ready")][0].status == "True")
        and ((.spec.taints // []) == []) and .status.allocatable["nvidia.com/gpu"] == "8"
        and ([range(8) as $rail | .status.allocatable["nvidia.com/rail-\($rail)"] == "1"] | all)'
}

# --- the whole ------------------------------------------------------------------------------------------------------

start_cluster() {
    local node begin
    now && begin=$now
    make_images
    start_control_plane
    for_each_node boot
    for node in "${nodes[@]}"; do
        install_rails "$node" >"$cluster/log/$node-install.log" 2>&1 || { cat "$cluster/log/$node-install.log" >&2 && return 1; }
        install_multus "$node"
    done
    kubectl apply -f "$root/conf/nads.yaml" >>"$cluster/log/objects"
    await "the account of pods" 30 kubectl get serviceaccount default
    for node in "${nodes[@]}"; do await "$node is registered" 60 give_gpus "$node"; done
    for node in "${nodes[@]}"; do await "$node is ready" 60 node_is_ready "$node"; done
    now
    printf 'up in %s s\n' "$(seconds $((now - begin)))"
}

# trainer NAME [FILTER]: conf/pod.yaml under this name, with the image that is here, and what a filter of jq changes.
trainer() {
    kubectl create --dry-run=client -o json -f "$root/conf/pod.yaml" |
        jq --arg name "$1" '.metadata.name = $name | .spec.containers[0].imagePullPolicy = "Never" | '"${2:-.}"
}

start_trainers() {
    local begin
    now && begin=$now
    { trainer trainer-0 && trainer trainer-1; } | kubectl apply -f -
    kubectl wait --for condition=Ready --timeout 120s pod/trainer-0 pod/trainer-1
    now
    printf 'two pods with eight rails each in %s s\n' "$(seconds $((now - begin)))"
}

# pings POD TO: the largest packet from each rail of a pod to each rail of another. Prints a line for each rail: `.` for
# an answer, `X` for none. Fails if one is missing.
pings() {
    local -a targets
    mapfile -t targets < <(addresses "$2")
    ((${#targets[@]})) || return
    # shellcheck disable=SC2016
    kubectl exec "$1" -- sh -c 'lost=0
        for interface in 1 2 3 4 5 6 7 8; do
            line="net$interface "
            for address; do
                if ping -q -c 1 -W 5 -s 8972 -I "net$interface" "$address" >/dev/null; then line="$line ."
                else line="$line X" lost=1; fi
            done
            echo "$line"
        done
        exit $lost' sh "${targets[@]}"
}

# addresses POD: of its rails, by what Multus reported.
addresses() { network_status "$1" | jq -r '.[1:][].ips[0]'; }

network_status() {
    kubectl get pod "$1" -o json | jq '.metadata.annotations["k8s.v1.cni.cncf.io/network-status"] | fromjson'
}

# shown COMMAND...: the command and what it prints.
shown() {
    printf '\n$ %s\n' "$*"
    "$@"
}

show() {
    shown kubectl get nodes -o wide
    shown kubectl get pods -o wide
    shown kubectl exec trainer-0 -- ip -4 addr show scope global
    printf '\nthe network-status of trainer-0, of eth0, rail-0 and rail-7:\n'
    network_status trainer-0 | jq -c '.[0, 1, 8]'
    printf '\nthe largest packet from each rail of trainer-0 to each rail of trainer-1, and back:\n'
    pings trainer-0 trainer-1
    printf '\n'
    pings trainer-1 trainer-0
}

# seconds MICROSECONDS: with one decimal.
seconds() { printf '%d.%d' $(($1 / 1000000)) $(($1 % 1000000 / 100000)); }
