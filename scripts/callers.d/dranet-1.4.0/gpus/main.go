// Command gpus is the driver of GPUs that a node does not have: it publishes one below each PCIe root that is named, and has
// nothing to prepare for a claim.
//
// usage: gpus KUBECONFIG NODE ROOT...
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const name = "gpu.example.com"

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: gpus KUBECONFIG NODE ROOT...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "gpus:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, node string, roots []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := os.MkdirAll(filepath.Join(kubeletplugin.KubeletPluginsDir, name), 0o750); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, driver{}, kubeletplugin.DriverName(name), kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(client))
	if err != nil {
		return err
	}
	defer helper.Stop()
	slice := resourceslice.Slice{Devices: devices(roots)}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{slice}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func devices(roots []string) []resource.Device {
	var all []resource.Device
	for number, root := range roots {
		all = append(all, resource.Device{
			Name: fmt.Sprintf("gpu-%d", number),
			Attributes: map[resource.QualifiedName]resource.DeviceAttribute{
				deviceattribute.StandardDeviceAttributePCIeRoot: {StringValue: &root},
			},
		})
	}
	return all
}

type driver struct{}

func (driver) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = kubeletplugin.PrepareResult{}
	}
	return results, nil
}

func (driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = nil
	}
	return results, nil
}

func (driver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, "gpus:", message, err)
}
