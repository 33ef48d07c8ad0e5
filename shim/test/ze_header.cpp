/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the rows of levelzero_calls.h with the real header, at compile time. levelzero_test.go
 * generates in_header.h: a line CHECK(name) for each row that this version of the header declares.
 */
#include <level_zero/ze_api.h>

#include <type_traits>

#include "../levelzero_calls.h"

/* Handles and pointers are pointers; all else must have the same size, and be passed alike. */
template <class Ours, class Theirs>
constexpr bool same = std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
                      std::is_class_v<Ours> == std::is_class_v<Theirs>;

template <class Ours, class Theirs> struct agree : std::false_type {};
template <class... Ours, class... Theirs>
struct agree<int32_t(Ours...), ze_result_t(Theirs...)> {
  static constexpr bool all() {
    if constexpr (sizeof...(Ours) == sizeof...(Theirs)) return (same<Ours, Theirs> && ...);
    else return false;
  }
  static constexpr bool value = all();
};

#define CALL(name, events, parameters, arguments) typedef int32_t name##_row parameters;
GW_LEVELZERO_CALLS(CALL)
#define CHECK(name) static_assert(agree<name##_row, decltype(name)>::value, #name " differs from the header");
#include "in_header.h"
