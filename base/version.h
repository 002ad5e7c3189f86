// SPDX-License-Identifier: Apache-2.0
// Purpose: the version of everything that is built from this tree. Workers of another one are refused by the coordinator.
#pragma once

#define SL_VERSION "0.1.0"
