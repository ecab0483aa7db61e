package lint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

type field = map[string]any

// at follows keys into a manifest; an int is an index of a list.
func at(t *testing.T, value any, keys ...any) any {
	t.Helper()
	for _, key := range keys {
		switch key := key.(type) {
		case string:
			fields, ok := value.(field)
			require.True(t, ok && fields[key] != nil, "there is no %q of %v", key, keys)
			value = fields[key]
		case int:
			list, ok := value.([]any)
			require.True(t, ok && key < len(list), "there is no item %d of %v", key, keys)
			value = list[key]
		}
	}
	return value
}

// The manifests of examples/kubernetes are YAML, and each container that runs ranks starts torchrun and is a host of its own:
// without SAGECOMM_HOSTID, two pods of one machine would try to map each other's memory.
func TestManifestsOfKubernetes(t *testing.T) {
	containers := map[string][][]any{
		"pytorchjob.yaml": {
			{"spec", "pytorchReplicaSpecs", "Master", "template", "spec", "containers", 0},
			{"spec", "pytorchReplicaSpecs", "Worker", "template", "spec", "containers", 0},
		},
		"trainjob.yaml": {{"spec", "trainer"}},
	}
	kinds := map[string][2]string{
		"pytorchjob.yaml": {"kubeflow.org/v1", "PyTorchJob"},
		"trainjob.yaml":   {"trainer.kubeflow.org/v1alpha1", "TrainJob"},
	}
	files, err := filepath.Glob("../../examples/kubernetes/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(containers))
	for _, file := range files {
		name := filepath.Base(file)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var manifest field
		require.NoError(t, yaml.Unmarshal(text, &manifest), file)
		require.Equal(t, kinds[name], [2]string{at(t, manifest, "apiVersion").(string), at(t, manifest, "kind").(string)}, file)
		require.Contains(t, containers, name)
		for _, path := range containers[name] {
			container := at(t, manifest, path...)
			require.Equal(t, []any{"torchrun", "train.py"}, at(t, container, "command"), file)
			require.Equal(t, "SAGECOMM_HOSTID", at(t, container, "env", 0, "name"), file)
			require.Equal(t, "metadata.name", at(t, container, "env", 0, "valueFrom", "fieldRef", "fieldPath"), file)
		}
	}
}
