/* table.inc.h: the table of functions by type and reduction. A combination that is not listed is not defined. */

#define SCR_INTEGER_ROW(name, bits)                                                                                    \
  {[SAGECOMM_SUM] = reduce_sum_##bits, [SAGECOMM_AVG] = reduce_avg_##name, [SAGECOMM_PRODUCT] = reduce_product_##bits, \
   [SAGECOMM_MIN] = reduce_min_##name, [SAGECOMM_MAX] = reduce_max_##name, [SAGECOMM_BAND] = reduce_and_##bits,        \
   [SAGECOMM_BOR] = reduce_or_##bits,  [SAGECOMM_BXOR] = reduce_xor_##bits}
#define SCR_FLOAT_ROW(name)                                                                                            \
  {[SAGECOMM_SUM] = reduce_sum_##name, [SAGECOMM_AVG] = reduce_avg_##name, [SAGECOMM_PRODUCT] = reduce_product_##name, \
   [SAGECOMM_MIN] = reduce_min_##name, [SAGECOMM_MAX] = reduce_max_##name, [SAGECOMM_PREMUL_SUM] = reduce_sum_##name}
#define SCR_COMPLEX_ROW(name)                  \
  {[SAGECOMM_SUM] = reduce_sum_##name,         \
   [SAGECOMM_AVG] = reduce_avg_##name,         \
   [SAGECOMM_PRODUCT] = reduce_product_##name, \
   [SAGECOMM_PREMUL_SUM] = reduce_sum_##name}

const scr_kernels SCR_TABLE = {
    .name = SCR_NAME,
    .copy = copy,
    .copy_stream = copy_stream,
    .reduce =
        {
            [SAGECOMM_INT8] = SCR_INTEGER_ROW(i8, 8),
            [SAGECOMM_INT16] = SCR_INTEGER_ROW(i16, 16),
            [SAGECOMM_INT32] = SCR_INTEGER_ROW(i32, 32),
            [SAGECOMM_INT64] = SCR_INTEGER_ROW(i64, 64),
            [SAGECOMM_UINT8] = SCR_INTEGER_ROW(u8, 8),
            [SAGECOMM_UINT16] = SCR_INTEGER_ROW(u16, 16),
            [SAGECOMM_UINT32] = SCR_INTEGER_ROW(u32, 32),
            [SAGECOMM_UINT64] = SCR_INTEGER_ROW(u64, 64),
            [SAGECOMM_BOOL] = {[SAGECOMM_SUM] = reduce_or_bool,
                               [SAGECOMM_PRODUCT] = reduce_and_bool,
                               [SAGECOMM_MIN] = reduce_and_bool,
                               [SAGECOMM_MAX] = reduce_or_bool,
                               [SAGECOMM_BAND] = reduce_and_bool,
                               [SAGECOMM_BOR] = reduce_or_bool,
                               [SAGECOMM_BXOR] = reduce_xor_bool},
            [SAGECOMM_FLOAT16] = SCR_FLOAT_ROW(fp16),
            [SAGECOMM_BFLOAT16] = SCR_FLOAT_ROW(bf16),
            [SAGECOMM_FLOAT32] = SCR_FLOAT_ROW(fp32),
            [SAGECOMM_FLOAT64] = SCR_FLOAT_ROW(fp64),
            [SAGECOMM_COMPLEX64] = SCR_COMPLEX_ROW(c64),
            [SAGECOMM_COMPLEX128] = SCR_COMPLEX_ROW(c128),
        },
    .scale = {[SAGECOMM_FLOAT16] = scale_fp16,
              [SAGECOMM_BFLOAT16] = scale_bf16,
              [SAGECOMM_FLOAT32] = scale_fp32,
              [SAGECOMM_FLOAT64] = scale_fp64,
              [SAGECOMM_COMPLEX64] = scale_c64,
              [SAGECOMM_COMPLEX128] = scale_c128},
};

_Static_assert((int)SCR_TYPES == (int)SAGECOMM_DTYPE_COUNT, "a row for each type");
_Static_assert((int)SCR_REDUCTIONS == (int)SAGECOMM_REDUCE_OP_COUNT, "a column for each reduction");
