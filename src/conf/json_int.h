/* SPDX-License-Identifier: MIT
 *
 * Shared by the JSON reader and writer: yyjson and the way back from a json_val to it.
 */
#pragma once

#include <conf/conf.h>
#include <yyjson.h>

yyjson_val *json_val_yy(json_val v);
