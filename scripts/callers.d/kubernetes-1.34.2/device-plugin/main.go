// Command device-plugin offers VFs to the kubelet as the SR-IOV device plugin does: it reads the same configuration,
// hands out PCI addresses, and tells the container by a variable and Multus by a file what was handed out. A sysfs
// that is made of files is enough for it. It also offers GPUs that do not exist.
//
//	device-plugin CONFIG SYSFS
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The folder in which Multus looks for what a device plugin says about a device.
const deviceInfo = "/var/run/k8s.cni.cncf.io/devinfo/dp"

const gpus = 8

// A resource is the server of one kind of device.
type resource struct {
	api.UnimplementedDevicePluginServer
	name    string
	devices []*api.Device
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: device-plugin CONFIG SYSFS")
		os.Exit(2)
	}
	resources, err := readResources(os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	if err := os.MkdirAll(deviceInfo, 0o755); err != nil {
		log.Fatal(err)
	}
	// A kubelet that starts empties the folder and makes its socket anew. Its inode number may be the one of before.
	var seen time.Time
	for ; ; time.Sleep(100 * time.Millisecond) {
		socket, err := os.Stat(api.KubeletSocket)
		if err != nil || socket.ModTime().Equal(seen) {
			continue
		}
		if err := offer(resources); err != nil {
			log.Print(err)
			continue
		}
		seen = socket.ModTime()
		log.Printf("%d resources are registered", len(resources))
	}
}

// readResources reads the configuration of the SR-IOV device plugin. The devices are the VFs of the PFs that it names.
func readResources(config, sysfs string) ([]*resource, error) {
	var file struct {
		ResourceList []struct {
			ResourcePrefix string
			ResourceName   string
			Selectors      struct{ RootDevices []string }
		}
	}
	text, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	var resources []*resource
	for _, each := range file.ResourceList {
		of := &resource{name: each.ResourcePrefix + "/" + each.ResourceName}
		for _, pf := range each.Selectors.RootDevices {
			links, err := filepath.Glob(filepath.Join(sysfs, "bus/pci/devices", pf, "virtfn*"))
			if err != nil {
				return nil, err
			}
			for _, link := range links {
				vf, err := os.Readlink(link)
				if err != nil {
					return nil, err
				}
				of.add(filepath.Base(vf))
			}
		}
		resources = append(resources, of)
	}
	gpu := &resource{name: "nvidia.com/gpu"}
	for number := range gpus {
		gpu.add(fmt.Sprintf("gpu-%d", number))
	}
	return append(resources, gpu), nil
}

func (of *resource) add(device string) {
	of.devices = append(of.devices, &api.Device{ID: device, Health: api.Healthy})
}

// offer makes a socket for each resource, and tells the kubelet.
func offer(resources []*resource) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	kubelet, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	for _, of := range resources {
		socket := strings.ReplaceAll(of.name, "/", "-") + ".sock"
		path := filepath.Join(api.DevicePluginPath, socket)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		listener, err := net.Listen("unix", path)
		if err != nil {
			return err
		}
		server := grpc.NewServer()
		api.RegisterDevicePluginServer(server, of)
		go func() {
			if err := server.Serve(listener); err != nil {
				log.Print(err)
			}
		}()
		request := &api.RegisterRequest{Version: api.Version, Endpoint: socket, ResourceName: of.name}
		if _, err := api.NewRegistrationClient(kubelet).Register(ctx, request); err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
	}
	return nil
}

func (of *resource) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch tells the devices once: they do not change.
func (of *resource) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: of.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (of *resource) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	variable := "PCIDEVICE_" + strings.ToUpper(strings.NewReplacer("/", "_", ".", "_", "-", "_").Replace(of.name))
	for _, each := range request.ContainerRequests {
		for _, id := range each.DevicesIds {
			if err := of.describe(id); err != nil {
				return nil, err
			}
		}
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{variable: strings.Join(each.DevicesIds, ",")},
		})
	}
	return response, nil
}

// describe writes the file from which Multus takes the device-info of a network.
func (of *resource) describe(id string) error {
	if of.name == "nvidia.com/gpu" {
		return nil
	}
	text, err := json.Marshal(map[string]any{
		"type": "pci", "version": "1.1.0", "pci": map[string]string{"pci-address": id},
	})
	if err != nil {
		return err
	}
	name := strings.ReplaceAll(of.name, "/", "-") + "-" + id + "-device.json"
	return os.WriteFile(filepath.Join(deviceInfo, name), text, 0o644)
}
