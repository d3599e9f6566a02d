// Command admin calls methods of pulsaradmin, the library of pulsarctl, by their names.
//
// With a URL of a broker it reads a call a line, {"call": "Topics Create", "arguments": ["t", 4]}, and prints what it
// came to, {"status": 0, "answer": …} or {"status": 404, "reason": "…"}. Without one it lists the methods.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"

	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

// Pulsarctl asks for these with the third version of the API, for all others with the second.
var thirdVersion = map[string]bool{"Functions": true, "Sources": true, "Sinks": true, "Packages": true}

// A method Do is there as DoWithContext, too: Do calls it with an empty context.
const withContext = "WithContext"

type call struct {
	Call      string            `json:"call"`
	Arguments []json.RawMessage `json:"arguments"`
}

type result struct {
	Status int    `json:"status"`
	Answer any    `json:"answer"`
	Reason string `json:"reason,omitempty"`
}

func main() {
	methods, err := methodsAt(strings.Join(os.Args[1:], ""))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if len(os.Args) == 1 {
		for _, name := range names(methods) {
			fmt.Println(name)
		}
		return
	}
	calls := bufio.NewScanner(os.Stdin)
	calls.Buffer(nil, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	for calls.Scan() {
		var asked call
		if err := json.Unmarshal(calls.Bytes(), &asked); err != nil {
			panic(err)
		}
		if err := answers.Encode(made(methods[asked.Call], asked)); err != nil {
			panic(err)
		}
	}
}

// methodsAt returns every method of every interface that the library's client has, by "Interface Method".
func methodsAt(url string) (map[string]reflect.Value, error) {
	second, err := admin.New(&config.Config{WebServiceURL: url, PulsarAPIVersion: config.V2})
	if err != nil {
		return nil, err
	}
	third, err := admin.New(&config.Config{WebServiceURL: url, PulsarAPIVersion: config.V3})
	if err != nil {
		return nil, err
	}
	interfaces := map[string]reflect.Value{}
	for at := range reflect.TypeFor[admin.Client]().NumMethod() {
		name := reflect.TypeFor[admin.Client]().Method(at).Name
		client := second
		if thirdVersion[name] {
			client = third
		}
		interfaces[name] = reflect.ValueOf(client).MethodByName(name).Call(nil)[0]
	}
	// These are not among the client's own.
	for name, isGlobal := range map[string]bool{"TopicPolicies": false, "GlobalTopicPolicies": true} {
		policies, err := admin.TopicPoliciesOf(second, isGlobal)
		if err != nil {
			return nil, err
		}
		interfaces[name] = reflect.ValueOf(&policies).Elem()
	}
	methods := map[string]reflect.Value{}
	for name, of := range interfaces {
		for at := range of.Type().NumMethod() {
			methods[name+" "+of.Type().Method(at).Name] = of.Method(at)
		}
	}
	return methods, nil
}

// names returns the methods without those that differ from another one by their context.
func names(methods map[string]reflect.Value) []string {
	var found []string
	for name := range methods {
		if plain, is := strings.CutSuffix(name, withContext); is && methods[plain].IsValid() {
			continue
		}
		found = append(found, name)
	}
	sort.Strings(found)
	return found
}

func made(method reflect.Value, asked call) result {
	if !method.IsValid() {
		panic(asked.Call + " is no method")
	}
	arguments, err := converted(method.Type(), asked.Arguments)
	if err != nil {
		return result{Status: 1, Reason: err.Error()}
	}
	returned := method.Call(arguments)
	last := len(returned) - 1
	if err, is := returned[last].Interface().(error); is {
		var refused rest.Error
		if errors.As(err, &refused) {
			return result{Status: refused.Code, Reason: refused.Reason}
		}
		return result{Status: 1, Reason: err.Error()}
	}
	values := make([]any, last)
	for at := range values {
		values[at] = returned[at].Interface()
	}
	switch last {
	case 0:
		return result{}
	case 1:
		return result{Answer: values[0]}
	}
	return result{Answer: values}
}

// converted returns the arguments as the method takes them: names and message IDs are given as text.
func converted(method reflect.Type, given []json.RawMessage) ([]reflect.Value, error) {
	var arguments []reflect.Value
	for at := range method.NumIn() {
		wanted := method.In(at)
		if wanted == reflect.TypeFor[context.Context]() {
			arguments = append(arguments, reflect.ValueOf(context.Background()))
			continue
		}
		if len(given) == 0 {
			return nil, fmt.Errorf("argument %d, a %s, is missing", at, wanted)
		}
		argument, err := one(wanted, given[0])
		if err != nil {
			return nil, err
		}
		arguments = append(arguments, argument)
		given = given[1:]
	}
	if len(given) > 0 {
		return nil, fmt.Errorf("%s is one argument too many", given[0])
	}
	return arguments, nil
}

func one(wanted reflect.Type, given json.RawMessage) (reflect.Value, error) {
	var text string
	if json.Unmarshal(given, &text) == nil {
		switch wanted {
		case reflect.TypeFor[utils.TopicName]():
			return parsed(utils.GetTopicName(text))
		case reflect.TypeFor[utils.NameSpaceName]():
			return parsed(utils.GetNamespaceName(text))
		case reflect.TypeFor[utils.MessageID]():
			return parsed(utils.ParseMessageID(text))
		}
	}
	value := reflect.New(wanted)
	if err := json.Unmarshal(given, value.Interface()); err != nil || wanted.Kind() != reflect.Struct {
		return value.Elem(), err
	}
	return value.Elem(), leftOut(value.Elem(), given)
}

// leftOut sets the fields that are no part of a request's body, as the name of a tenant, by their names in Go.
func leftOut(value reflect.Value, given json.RawMessage) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(given, &fields); err != nil {
		return err
	}
	for at := range value.NumField() {
		field := value.Type().Field(at)
		if content, has := fields[field.Name]; has && field.Tag.Get("json") == "-" {
			if err := json.Unmarshal(content, value.Field(at).Addr().Interface()); err != nil {
				return err
			}
		}
	}
	return nil
}

func parsed[T any](value *T, err error) (reflect.Value, error) {
	if err != nil {
		return reflect.Value{}, err
	}
	return reflect.ValueOf(*value), nil
}
