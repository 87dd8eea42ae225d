package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// What runtimes are told to take for sandboxes.
const imageName = "rail-cni.test/pause:1"

// writeImage makes an OCI image without a registry: one layer with one static program.
func writeImage(file string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(filepath.Join(filepath.Dir(self), "pause"))
	if err != nil {
		return err
	}
	layer := archive(entry{"pause", program, 0o755})
	config := encode(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	const media = "application/vnd.oci.image."
	manifest := encode(map[string]any{
		"schemaVersion": 2, "mediaType": media + "manifest.v1+json",
		"config": descriptor(media+"config.v1+json", config),
		"layers": []any{descriptor(media+"layer.v1.tar", layer)},
	})
	of := descriptor(media+"manifest.v1+json", manifest)
	of["annotations"] = map[string]string{
		"io.containerd.image.name": imageName, "org.opencontainers.image.ref.name": imageName,
	}
	index := encode(map[string]any{"schemaVersion": 2, "manifests": []any{of}})
	image := archive(
		entry{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644}, entry{"index.json", index, 0o644},
		blob(manifest), blob(config), blob(layer),
	)
	return os.WriteFile(file, image, 0o644)
}

type entry struct {
	name string
	data []byte
	mode int64
}

func blob(data []byte) entry {
	return entry{"blobs/sha256/" + digest(data)[len("sha256:"):], data, 0o644}
}

// archive makes a tar file. Nothing here can fail: it is written to memory.
func archive(entries ...entry) []byte {
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, each := range entries {
		_ = writer.WriteHeader(&tar.Header{Name: each.name, Mode: each.mode, Size: int64(len(each.data))})
		_, _ = writer.Write(each.data)
	}
	_ = writer.Close()
	return buffer.Bytes()
}

func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

func descriptor(media string, data []byte) map[string]any {
	return map[string]any{"mediaType": media, "digest": digest(data), "size": len(data)}
}
