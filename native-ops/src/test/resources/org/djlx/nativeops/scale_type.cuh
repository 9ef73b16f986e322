// The type of a vector's elements.
#pragma once

using Element = float;
