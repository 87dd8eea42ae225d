// Calls CNI plugins as CRI-O does, through its library: attaches the named networks to a pod, or detaches them.
//
// usage: ocicni up|down CONTAINER NETNS [NETWORK=IFNAME...]
//
// Without networks, the default one is called. Configurations are those of /etc/cni/net.d, plugins those of
// /opt/cni/bin. The results of `up` go to standard output, as a JSON array.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/cri-o/ocicni/pkg/ocicni"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("usage: ocicni up|down CONTAINER NETNS [NETWORK=IFNAME...]")
	}
	pod := ocicni.PodNetwork{Name: "trainer-0", Namespace: "default", UID: "uid-" + args[1], ID: args[1], NetNS: args[2]}
	for _, arg := range args[3:] {
		name, ifname, _ := strings.Cut(arg, "=")
		pod.Networks = append(pod.Networks, ocicni.NetAttachment{Name: name, Ifname: ifname})
	}
	plugin, err := ocicni.InitCNINoInotify("", "/etc/cni/net.d", "", "/opt/cni/bin")
	if err != nil {
		return err
	}
	defer plugin.Shutdown()
	if args[0] == "down" {
		return plugin.TearDownPod(pod)
	}
	if err := plugin.Status(); err != nil {
		return err
	}
	attached, err := plugin.SetUpPod(pod)
	if err != nil {
		return err
	}
	results := make([]types.Result, len(attached))
	for i, one := range attached {
		results[i] = one.Result
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}
