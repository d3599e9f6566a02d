//go:build kubernetes_1_32

package main

import (
	"github.com/spf13/cobra"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// The one part that takes other parameters in this version.
func newKubelet() *cobra.Command { return kubelet.NewKubeletCommand() }
