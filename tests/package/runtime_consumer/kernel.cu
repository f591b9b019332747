// Any CUDA source: the consumer's own.
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
