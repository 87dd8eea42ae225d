// Command kube is etcd, kube-apiserver, kube-scheduler, kube-controller-manager, kubelet and kubectl in one executable:
// the name by which it is called, or else the first argument, says which of them. They share most of their
// code, so one file is a third of six.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// As their own main packages have them: plain and JSON logs, metrics of the clients.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return command(kubelet.NewKubeletCommand) },
	"kubectl":                 func() *cobra.Command { return cmd.NewDefaultKubectlCommand() },
}

func main() {
	args := os.Args
	if !isProgram(args[0]) && len(args) > 1 {
		args = args[1:]
	}
	if !isProgram(args[0]) {
		fmt.Fprintln(os.Stderr, "usage: kube PROGRAM [ARGUMENT...]")
		fmt.Fprintln(os.Stderr, "PROGRAM: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet or kubectl")
		os.Exit(2)
	}
	os.Args = args
	name := filepath.Base(args[0])
	if name == "etcd" {
		etcdmain.Main(args)
		return
	}
	os.Exit(cli.Run(programs[name]()))
}

// command: of Kubernetes 1.32, the kubelet takes no context.
func command(make any) *cobra.Command {
	if before, is := make.(func() *cobra.Command); is {
		return before()
	}
	return make.(func(context.Context) *cobra.Command)(context.Background())
}

func isProgram(path string) bool {
	name := filepath.Base(path)
	return name == "etcd" || programs[name] != nil
}
