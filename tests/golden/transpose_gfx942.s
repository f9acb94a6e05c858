; LLVM 22.1.0
s_load_dwordx4 s[0:3], s[0:1], 0x0
v_bfe_u32 v12, v0, 10, 10
v_mov_b32_e32 v3, 0
v_lshlrev_b32_e32 v2, 8, v12
v_and_b32_e32 v13, 0x3ff, v0
s_waitcnt lgkmcnt(0)
v_lshl_add_u64 v[4:5], s[0:1], 0, v[2:3]
v_lshlrev_b32_e32 v0, 2, v13
v_mov_b32_e32 v1, v3
v_lshl_add_u64 v[4:5], v[4:5], 0, v[0:1]
s_movk_i32 s0, 0x1000
v_add_co_u32_e32 v6, vcc, s0, v4
s_movk_i32 s1, 0x2000
s_nop 0
v_addc_co_u32_e32 v7, vcc, 0, v5, vcc
v_add_co_u32_e32 v8, vcc, s1, v4
s_movk_i32 s4, 0x3000
s_nop 0
v_addc_co_u32_e32 v9, vcc, 0, v5, vcc
v_add_co_u32_e32 v10, vcc, s4, v4
s_movk_i32 s4, 0x104
s_nop 0
v_addc_co_u32_e32 v11, vcc, 0, v5, vcc
global_load_dword v14, v[4:5], off
global_load_dword v15, v[4:5], off offset:1024
global_load_dword v16, v[4:5], off offset:2048
global_load_dword v17, v[4:5], off offset:3072
global_load_dword v18, v[6:7], off offset:1024
global_load_dword v19, v[6:7], off offset:2048
global_load_dword v20, v[6:7], off offset:3072
global_load_dword v21, v[10:11], off
global_load_dword v23, v[8:9], off offset:-4096
global_load_dword v24, v[8:9], off
global_load_dword v25, v[8:9], off offset:1024
global_load_dword v26, v[8:9], off offset:2048
global_load_dword v27, v[8:9], off offset:3072
global_load_dword v28, v[10:11], off offset:1024
global_load_dword v29, v[10:11], off offset:2048
s_nop 0
global_load_dword v9, v[10:11], off offset:3072
v_mul_u32_u24_e32 v4, 0x104, v13
v_lshl_add_u64 v[2:3], s[2:3], 0, v[2:3]
v_mad_u32_u24 v8, v12, s4, v0
v_lshl_add_u32 v22, v12, 2, v4
v_lshl_add_u64 v[0:1], v[2:3], 0, v[0:1]
v_add_co_u32_e32 v2, vcc, s0, v0
s_waitcnt vmcnt(15)
ds_write_b32 v8, v14
s_waitcnt vmcnt(14)
ds_write_b32 v8, v15 offset:1040
s_waitcnt vmcnt(13)
ds_write_b32 v8, v16 offset:2080
s_waitcnt vmcnt(12)
ds_write_b32 v8, v17 offset:3120
s_waitcnt vmcnt(7)
ds_write_b32 v8, v23 offset:4160
ds_write_b32 v8, v18 offset:5200
ds_write_b32 v8, v19 offset:6240
ds_write_b32 v8, v20 offset:7280
s_waitcnt vmcnt(6)
ds_write_b32 v8, v24 offset:8320
s_waitcnt vmcnt(5)
ds_write_b32 v8, v25 offset:9360
s_waitcnt vmcnt(4)
ds_write_b32 v8, v26 offset:10400
s_waitcnt vmcnt(3)
ds_write_b32 v8, v27 offset:11440
ds_write_b32 v8, v21 offset:12480
s_waitcnt vmcnt(2)
ds_write_b32 v8, v28 offset:13520
s_waitcnt vmcnt(1)
ds_write_b32 v8, v29 offset:14560
s_waitcnt vmcnt(0)
ds_write_b32 v8, v9 offset:15600
v_addc_co_u32_e32 v3, vcc, 0, v1, vcc
v_add_co_u32_e32 v4, vcc, s1, v0
s_waitcnt lgkmcnt(0)
s_barrier
ds_read2_b32 v[8:9], v22 offset1:4
ds_read2_b32 v[10:11], v22 offset0:8 offset1:12
ds_read2_b32 v[12:13], v22 offset0:16 offset1:20
ds_read2_b32 v[14:15], v22 offset0:24 offset1:28
ds_read2_b32 v[16:17], v22 offset0:32 offset1:36
ds_read2_b32 v[18:19], v22 offset0:40 offset1:44
ds_read2_b32 v[20:21], v22 offset0:48 offset1:52
ds_read2_b32 v[22:23], v22 offset0:56 offset1:60
v_addc_co_u32_e32 v5, vcc, 0, v1, vcc
v_add_co_u32_e32 v6, vcc, 0x3000, v0
s_nop 1
v_addc_co_u32_e32 v7, vcc, 0, v1, vcc
s_waitcnt lgkmcnt(7)
global_store_dword v[0:1], v8, off
global_store_dword v[0:1], v9, off offset:1024
s_waitcnt lgkmcnt(6)
global_store_dword v[0:1], v10, off offset:2048
global_store_dword v[0:1], v11, off offset:3072
s_waitcnt lgkmcnt(5)
global_store_dword v[4:5], v12, off offset:-4096
global_store_dword v[2:3], v13, off offset:1024
s_waitcnt lgkmcnt(4)
global_store_dword v[2:3], v14, off offset:2048
global_store_dword v[2:3], v15, off offset:3072
s_waitcnt lgkmcnt(3)
global_store_dword v[4:5], v16, off
global_store_dword v[4:5], v17, off offset:1024
s_waitcnt lgkmcnt(2)
global_store_dword v[4:5], v18, off offset:2048
global_store_dword v[4:5], v19, off offset:3072
s_waitcnt lgkmcnt(1)
global_store_dword v[6:7], v20, off
global_store_dword v[6:7], v21, off offset:1024
s_waitcnt lgkmcnt(0)
global_store_dword v[6:7], v22, off offset:2048
global_store_dword v[6:7], v23, off offset:3072
s_endpgm
