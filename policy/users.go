package policy

import "strings"

// users holds the names of the policies that use each attribute.
var users = func() map[string][]string {
	m := map[string][]string{}
	for _, e := range table {
		for name := range strings.FieldsSeq(e.uses) {
			m[name] = append(m[name], e.name)
		}
	}
	return m
}()

// Users lists the policies whose Info.Uses names an attribute. The caller must not change
// the list.
func Users(attribute string) []string { return users[attribute] }
