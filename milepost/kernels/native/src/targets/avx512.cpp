#define MILEPOST_TARGET avx512
#include "kernels.inl"
