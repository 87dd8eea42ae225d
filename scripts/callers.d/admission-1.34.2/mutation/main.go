// Command mutation changes pods by a MutatingAdmissionPolicy, with the code of Kubernetes' API server:
//
//	mutation POLICY.yaml < PODS.json
//
// The pods are printed in the order in which they came, as JSONPatch has made them, with the defaults that the API server adds
// to nothing. Match conditions are asked; what they pass over is printed as it was.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/api/admissionregistration/v1beta1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file string, from io.Reader, to io.Writer) error {
	policy, err := read(file)
	if err != nil {
		return err
	}
	var pods []*core.Pod
	if err := json.NewDecoder(from).Decode(&pods); err != nil {
		return err
	}
	for at := range pods {
		if pods[at], err = mutate(policy, pods[at]); err != nil {
			return fmt.Errorf("%s: %w", pods[at].Name, err)
		}
	}
	return json.NewEncoder(to).Encode(pods)
}

// read returns the only MutatingAdmissionPolicy of a file. A field that is unknown is an error.
func read(file string) (*v1beta1.MutatingAdmissionPolicy, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s has no MutatingAdmissionPolicy", file)
		}
		if err != nil {
			return nil, err
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return nil, err
		}
		if kind.Kind == "MutatingAdmissionPolicy" {
			policy := &v1beta1.MutatingAdmissionPolicy{}
			return policy, yaml.UnmarshalStrict(document, policy)
		}
	}
}

// mutate does what the API server does with one policy and one pod.
func mutate(policy *v1beta1.MutatingAdmissionPolicy, pod *core.Pod) (*core.Pod, error) {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion(), true))
	if err != nil {
		return pod, err
	}
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true, StrictCost: true}
	for _, each := range policy.Spec.Variables {
		variable := &mutating.Variable{Name: each.Name, Expression: each.Expression}
		if result := compiler.CompileAndStoreVariable(variable, options, environment.NewExpressions); result.Error != nil {
			return pod, fmt.Errorf("%s: %s", each.Name, result.Error.Detail)
		}
	}
	interfaces := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	kind := core.SchemeGroupVersion.WithKind("Pod")
	resource := core.SchemeGroupVersion.WithResource("pods")
	attributes := admission.NewAttributesRecord(pod, nil, kind, pod.Namespace, pod.Name, resource, "", admission.Create,
		&metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "someone"})
	versioned, err := admission.NewVersionedAttributes(attributes, kind, interfaces)
	if err != nil {
		return pod, err
	}
	ctx := compiler.CompositionEnv.CreateContext(context.Background())
	conditions := make([]cel.ExpressionAccessor, len(policy.Spec.MatchConditions))
	for at := range policy.Spec.MatchConditions {
		conditions[at] = (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[at])
	}
	compiled := compiler.CompileCondition(conditions, options, environment.NewExpressions)
	matched := matchconditions.NewMatcher(compiled, nil, "policy", "validate", policy.Name).Match(ctx, versioned, nil, nil)
	if matched.Error != nil || !matched.Matches {
		return pod, matched.Error
	}
	options.HasPatchTypes = true
	for _, each := range policy.Spec.Mutations {
		condition := &patch.JSONPatchCondition{Expression: each.JSONPatch.Expression}
		patcher := patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(condition, options, environment.NewExpressions))
		changed, err := patcher.Patch(ctx, patch.Request{
			MatchedResource: resource, VersionedAttributes: versioned, ObjectInterfaces: interfaces,
		}, celconfig.RuntimeCELCostBudget)
		if err != nil {
			return pod, err
		}
		versioned.VersionedObject = changed
	}
	changed, ok := versioned.VersionedObject.(*core.Pod)
	if !ok {
		return pod, fmt.Errorf("it became a %T", versioned.VersionedObject)
	}
	return changed, nil
}
