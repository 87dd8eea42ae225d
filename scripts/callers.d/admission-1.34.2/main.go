// Command admission judges objects by ValidatingAdmissionPolicies, with the admission plugin of Kubernetes' API server:
//
//	admission POLICY.yaml < REQUESTS.json
//
// A request is {"user": NAME, "groups": [...], "extra": {KEY: [...]}, "may": [...], "old": OBJECT, "object": OBJECT}; "old"
// makes it an update. "may" has the user's rights as VERB GROUP/RESOURCE/NAME, or "*". The answers are printed in the
// order of the requests: the texts of the policies that refuse it, in the order of
// the file. An API server shows one of them, and which one differs from run to run: it keeps its policies in a map.
//
// Before that, every expression is compiled as the API server of Kubernetes 1.30, the first with such policies, and this
// one compile the expressions of a policy that is created.
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
	"slices"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

// resources are what an object of a kind is in a path of the API.
var resources = map[string]string{
	"Event":                       "events",
	"NetworkAttachmentDefinition": "network-attachment-definitions",
	"Node":                        "nodes",
	"Pod":                         "pods",
}

type request struct {
	User        string                     `json:"user"`
	Groups      []string                   `json:"groups"`
	Extra       map[string][]string        `json:"extra"`
	May         []string                   `json:"may"`
	Old, Object *unstructured.Unstructured `json:",omitempty"`
}

func main() {
	klog.SetLogger(klog.Logger{}) // says when caches are filled
	if err := run(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file string, from io.Reader, to io.Writer) error {
	policies, err := read(file)
	if err != nil {
		return err
	}
	for _, each := range policies {
		if policy, ok := each.(*admissionregistration.ValidatingAdmissionPolicy); ok {
			for _, minor := range []uint{30, 34} {
				if err := compile(policy, minor); err != nil {
					return fmt.Errorf("%s, Kubernetes 1.%d: %w", policy.Name, minor, err)
				}
			}
		}
	}
	var requests []request
	if err := json.NewDecoder(from).Decode(&requests); err != nil {
		return err
	}
	answers, err := judge(policies, requests)
	if err != nil {
		return err
	}
	return json.NewEncoder(to).Encode(answers)
}

// read returns the policies and bindings of a file. A field that is unknown is an error.
func read(file string) ([]runtime.Object, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []runtime.Object
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return nil, err
		}
		var object runtime.Object
		switch kind.Kind {
		case "": // comments alone
			continue
		case "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding": // see mutation
			continue
		case "ValidatingAdmissionPolicy":
			object = &admissionregistration.ValidatingAdmissionPolicy{}
		case "ValidatingAdmissionPolicyBinding":
			object = &admissionregistration.ValidatingAdmissionPolicyBinding{}
		default:
			return nil, fmt.Errorf("%s: %q is no policy and no binding", file, kind.Kind)
		}
		if err := yaml.UnmarshalStrict(document, object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		complete(object)
		objects = append(objects, object)
	}
}

// complete sets what the API server sets where it is absent.
func complete(object runtime.Object) {
	var matches *admissionregistration.MatchResources
	switch object := object.(type) {
	case *admissionregistration.ValidatingAdmissionPolicy:
		matches = object.Spec.MatchConstraints
		if object.Spec.FailurePolicy == nil {
			fail := admissionregistration.Fail
			object.Spec.FailurePolicy = &fail
		}
	case *admissionregistration.ValidatingAdmissionPolicyBinding:
		matches = object.Spec.MatchResources
	}
	if matches == nil {
		return
	}
	if matches.MatchPolicy == nil {
		equivalent := admissionregistration.Equivalent
		matches.MatchPolicy = &equivalent
	}
	if matches.NamespaceSelector == nil {
		matches.NamespaceSelector = &metav1.LabelSelector{}
	}
	if matches.ObjectSelector == nil {
		matches.ObjectSelector = &metav1.LabelSelector{}
	}
	for at := range matches.ResourceRules {
		if rule := &matches.ResourceRules[at]; rule.Scope == nil {
			all := admissionregistration.AllScopes
			rule.Scope = &all
		}
	}
}

// compile compiles every expression with the functions that an API server of this version lets a new policy use.
func compile(policy *admissionregistration.ValidatingAdmissionPolicy, minor uint) error {
	env, err := cel.NewCompositionEnv(cel.VariablesTypeName, environment.MustBaseEnvSet(version.MajorMinor(1, minor), true))
	if err != nil {
		return err
	}
	compiler := cel.NewCompositedCompilerFromTemplate(env)
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true, StrictCost: true}
	check := func(what string, result cel.CompilationResult) error {
		if result.Error != nil {
			return fmt.Errorf("%s: %s", what, result.Error.Detail)
		}
		return nil
	}
	for at, each := range policy.Spec.MatchConditions {
		accessor := (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[at])
		if err := check(each.Name, compiler.CompileCELExpression(accessor, options, environment.NewExpressions)); err != nil {
			return err
		}
	}
	for _, each := range policy.Spec.Variables {
		accessor := &validating.Variable{Name: each.Name, Expression: each.Expression}
		if err := check(each.Name, compiler.CompileAndStoreVariable(accessor, options, environment.NewExpressions)); err != nil {
			return err
		}
	}
	for _, each := range policy.Spec.Validations {
		accessor := &validating.ValidationCondition{Expression: each.Expression}
		if err := check(each.Expression, compiler.CompileCELExpression(accessor, options, environment.NewExpressions)); err != nil {
			return err
		}
		if each.MessageExpression == "" {
			continue
		}
		message := &validating.MessageExpressionCondition{MessageExpression: each.MessageExpression}
		if err := check(each.MessageExpression, compiler.CompileCELExpression(message, options, environment.NewExpressions)); err != nil {
			return err
		}
	}
	return nil
}

// judge asks each policy by itself. What one refuses is refused.
func judge(objects []runtime.Object, requests []request) ([][]string, error) {
	answers := make([][]string, len(requests))
	for at := range answers {
		answers[at] = []string{}
	}
	for _, each := range objects {
		policy, ok := each.(*admissionregistration.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		refusals, err := refusalsOf(append(bindingsOf(policy, objects), policy), requests)
		if err != nil {
			return nil, err
		}
		for at, refusal := range refusals {
			if refusal != nil {
				answers[at] = append(answers[at], refusal.Error())
			}
		}
	}
	return answers, nil
}

func bindingsOf(policy *admissionregistration.ValidatingAdmissionPolicy, objects []runtime.Object) []runtime.Object {
	var bindings []runtime.Object
	for _, each := range objects {
		binding, ok := each.(*admissionregistration.ValidatingAdmissionPolicyBinding)
		if ok && binding.Spec.PolicyName == policy.Name {
			bindings = append(bindings, binding)
		}
	}
	return bindings
}

// refusalsOf runs the admission plugin on an API server's doubles that have these objects and the namespaces. A refusal is nil
// for what is admitted.
func refusalsOf(objects []runtime.Object, requests []request) ([]error, error) {
	seen := map[string]bool{}
	for _, each := range requests {
		name := each.Object.GetNamespace()
		if !seen[name] {
			seen[name] = true
			labels := map[string]string{core.LabelMetadataName: name}
			objects = append(objects, &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	plugin := validating.NewPlugin(nil)
	plugin.SetExternalKubeInformerFactory(factory)
	plugin.SetExternalKubeClientSet(client)
	plugin.SetRESTMapper(meta.NewDefaultRESTMapper(nil))
	plugin.SetDynamicClient(dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()))
	plugin.SetDrainedNotification(ctx.Done())
	plugin.SetAuthorizer(authorizer.AuthorizerFunc(authorize))
	if err := plugin.ValidateInitialization(); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return nil, fmt.Errorf("no %v", kind)
		}
	}
	// Until it has compiled the policy, the plugin refuses everything. This waits ten seconds, and a machine may be busy.
	for !plugin.WaitForReady() {
	}

	refusals := make([]error, len(requests))
	for at, each := range requests {
		refusals[at] = plugin.Validate(ctx, attributes(each), interfaces{admission.NewObjectInterfacesFromScheme(runtime.NewScheme())})
	}
	return refusals, nil
}

// account is a user with rights.
type account struct {
	user.DefaultInfo
	may []string
}

// authorize allows what the account of the request may do.
func authorize(_ context.Context, asked authorizer.Attributes) (authorizer.Decision, string, error) {
	right := fmt.Sprintf("%s %s/%s/%s", asked.GetVerb(), asked.GetAPIGroup(), asked.GetResource(), asked.GetName())
	if who, ok := asked.GetUser().(*account); ok && (slices.Contains(who.may, right) || slices.Contains(who.may, "*")) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func attributes(each request) admission.Attributes {
	who := &account{
		DefaultInfo: user.DefaultInfo{Name: each.User, Groups: append(each.Groups, user.AllAuthenticated), Extra: each.Extra},
		may:         each.May,
	}
	kind := each.Object.GroupVersionKind()
	resource := kind.GroupVersion().WithResource(resources[kind.Kind])
	var old runtime.Object
	operation := admission.Create
	var options runtime.Object = &metav1.CreateOptions{}
	if each.Old != nil {
		old, operation, options = each.Old, admission.Update, &metav1.UpdateOptions{}
	}
	return admission.NewAttributesRecord(each.Object, old, kind, each.Object.GetNamespace(), each.Object.GetName(), resource,
		"", operation, options, false, who)
}

// interfaces are those of a custom resource of one version: nothing is converted.
type interfaces struct{ admission.ObjectInterfaces }

func (interfaces) GetObjectConvertor() runtime.ObjectConvertor { return unconverted{} }

type unconverted struct{ runtime.ObjectConvertor }

func (unconverted) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}
