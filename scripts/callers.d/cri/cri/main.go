// Asks a container runtime for pod sandboxes as kubelet does, over CRI.
//
// Its verbs:
//
//	cri SOCKET run NAME CGROUP  starts a sandbox of the pod NAME of the namespace `default`, below a cgroup
//	cri SOCKET stop ID
//	cri SOCKET remove ID
//	cri SOCKET list             the sandboxes that there are
//	cri SOCKET status           what the runtime says of itself
//	cri image FILE              writes an OCI archive of the image of the sandboxes, with the program `pause` from
//	                            beside this one
//
// Prints JSON. In the answers of run and stop, `ms` are the milliseconds that the runtime took.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Kubelet waits two minutes for a sandbox.
const patience = 2 * time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "image" {
		return writeImage(args[1])
	}
	if len(args) < 2 {
		return fmt.Errorf("usage: cri SOCKET run|stop|remove|list|status [ARGUMENT...], or cri image FILE")
	}
	connection, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	runtime := cri.NewRuntimeServiceClient(connection)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	answer, err := ask(ctx, runtime, args[1], args[2:])
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}

func ask(ctx context.Context, runtime cri.RuntimeServiceClient, verb string, args []string) (any, error) {
	if wanted := map[string]int{"run": 2, "stop": 1, "remove": 1}[verb]; len(args) != wanted {
		return nil, fmt.Errorf("%s takes %d arguments", verb, wanted)
	}
	begin := time.Now()
	milliseconds := func() float64 { return float64(time.Since(begin).Microseconds()) / 1000 }
	switch verb {
	case "run":
		answer, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sandbox(args[0], args[1])})
		if err != nil {
			return nil, err
		}
		ms := milliseconds()
		status, err := runtime.PodSandboxStatus(ctx,
			&cri.PodSandboxStatusRequest{PodSandboxId: answer.PodSandboxId, Verbose: true})
		if err != nil {
			return nil, err
		}
		info := json.RawMessage(status.Info["info"])
		return map[string]any{"id": answer.PodSandboxId, "ms": ms, "ip": status.Status.Network.Ip, "info": info}, nil
	case "stop":
		_, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: args[0]})
		return map[string]any{"ms": milliseconds()}, err
	case "remove":
		return runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: args[0]})
	case "list":
		answer, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err != nil {
			return nil, err
		}
		list := []any{}
		for _, item := range answer.Items {
			list = append(list, map[string]any{"id": item.Id, "name": item.Metadata.Name, "state": item.State.String()})
		}
		return list, nil
	case "status":
		answer, err := runtime.Status(ctx, &cri.StatusRequest{})
		if err != nil {
			return nil, err
		}
		return answer.Status, nil
	}
	return nil, fmt.Errorf("no verb %q", verb)
}

// sandbox is what kubelet sends for a pod without special wishes. Its UID is of its name, as Multus compares it with that
// of the API server.
func sandbox(name, cgroup string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: "/var/log/pods/" + name,
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
		},
	}
}
