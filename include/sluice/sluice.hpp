// Sluice: recurrent-state ("linear") attention. Everything public.
#pragma once

#include "sluice/backend.hpp"
#include "sluice/device.hpp"
#include "sluice/error.hpp"
#include "sluice/expr.hpp"
#include "sluice/forward.hpp"
#include "sluice/memory.hpp"
#include "sluice/plan.hpp"
#include "sluice/problem.hpp"
#include "sluice/record.hpp"
#include "sluice/safetensors.hpp"
#include "sluice/short_conv.hpp"
#include "sluice/spec.hpp"
#include "sluice/tensor.hpp"
#include "sluice/variants.hpp"
#include "sluice/work.hpp"
