/* SPDX-License-Identifier: MIT
 *
 * Fuzzes the request parser: what it makes of the bytes must not depend on how they are cut, and every head that it accepts must be writable
 * again and read back as the same request.
 */
#include <base/base.h>
#include <http/http.h>

#define FUZZ_KIND HTTP_REQUEST
#include "http_fuzz.h"
