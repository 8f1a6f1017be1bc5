/* SPDX-License-Identifier: MIT
 *
 * Fuzzes the response parser: what it makes of the bytes must not depend on how they are cut.
 */
#include <base/base.h>
#include <http/http.h>

#define FUZZ_KIND HTTP_RESPONSE
#include "http_fuzz.h"
