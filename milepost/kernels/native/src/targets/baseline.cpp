#define MILEPOST_TARGET baseline
#include "kernels.inl"
