// Answers List of kubelet's pod-resources API from a file.
//
//	podresources SOCKET FILE
//
// The file has an array of {"namespace", "name", "resource", "device"}. It is read at each call.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: podresources SOCKET FILE")
	}
	listener, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterPodResourcesListerServer(server, lister{file: args[1]})
	return server.Serve(listener)
}

type lister struct {
	api.UnimplementedPodResourcesListerServer
	file string
}

type allotted struct{ Namespace, Name, Resource, Device string }

func (l lister) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	text, err := os.ReadFile(l.file)
	if err != nil {
		return nil, err
	}
	var all []allotted
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	answer := &api.ListPodResourcesResponse{}
	for _, one := range all {
		device := &api.ContainerDevices{ResourceName: one.Resource, DeviceIds: []string{one.Device}}
		container := &api.ContainerResources{Name: "pytorch", Devices: []*api.ContainerDevices{device}}
		answer.PodResources = append(answer.PodResources, &api.PodResources{
			Namespace: one.Namespace, Name: one.Name, Containers: []*api.ContainerResources{container},
		})
	}
	return answer, nil
}
