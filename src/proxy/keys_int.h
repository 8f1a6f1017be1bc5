/* SPDX-License-Identifier: MIT
 *
 * proxy, private: looking keys up. What others may know of them is in proxy.h.
 */
#pragma once

#include "proxy.h"

#define PROXY_KEY_SECRET_MAX 256 /* bytes of what a client shows; more is no key */

/* NULL: none of them. Takes the same time whichever it is. */
const struct proxy_key *proxy_keys_find(const struct proxy_keys *k, struct str secret);
