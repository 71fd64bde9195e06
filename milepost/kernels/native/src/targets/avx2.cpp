#define MILEPOST_TARGET avx2
#include "kernels.inl"
