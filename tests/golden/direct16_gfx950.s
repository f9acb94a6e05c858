; LLVM 22.1.0
s_load_dword s8, s[0:1], 0x10
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_readfirstlane_b32 s0, v0
s_lshl_b32 s0, s0, 4
s_and_b32 s9, s0, 0xfffffc00
s_waitcnt lgkmcnt(0)
s_lshl_b32 s2, s8, 12
s_and_b32 s1, s5, 0xffff
s_mov_b32 s3, 0x27000
s_mov_b32 s0, s4
v_lshlrev_b32_e32 v1, 4, v0
s_mov_b32 m0, s9
v_or_b32_e32 v2, 0x1000, v1
buffer_load_dwordx4 v1, s[0:3], 0 offen lds
s_add_i32 m0, s9, 0x1000
s_mov_b32 s4, 0
buffer_load_dwordx4 v2, s[0:3], 0 offen lds
s_cmp_lt_i32 s8, 1
s_mov_b32 s5, 2
v_lshlrev_b32_e32 v4, 2, v0
s_cbranch_scc1 .LBB0_3
v_xor_b32_e32 v0, 0x104, v4
v_lshlrev_b32_e32 v5, 2, v0
v_or_b32_e32 v6, 0x2000, v1
s_addk_i32 s9, 0x2000
v_mov_b32_e32 v0, 0
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v2, 0
v_mov_b32_e32 v3, 0
.LBB0_2:
s_mul_hi_u32 s10, s5, 0xaaaaaaab
s_lshr_b32 s10, s10, 1
s_mulk_i32 s10, 0xd000
s_add_i32 m0, s9, s10
s_waitcnt vmcnt(1) lgkmcnt(0)
s_barrier
buffer_load_dwordx4 v6, s[0:3], 0 offen lds
s_mul_hi_u32 s10, s4, 0xaaaaaaab
s_lshr_b32 s10, s10, 1
s_mulk_i32 s10, 0xd000
v_add_u32_e32 v7, s10, v5
ds_read_b128 v[8:11], v7
s_add_i32 s4, s4, 1
s_add_i32 s8, s8, -1
s_add_i32 s5, s5, 1
s_addk_i32 s9, 0x1000
v_add_u32_e32 v5, 0x1000, v5
v_add_u32_e32 v6, 0x1000, v6
s_cmp_lg_u32 s8, 0
s_waitcnt lgkmcnt(0)
v_add_f32_e32 v0, v0, v8
v_add_f32_e32 v1, v1, v9
v_add_f32_e32 v2, v2, v10
v_add_f32_e32 v3, v3, v11
s_cbranch_scc1 .LBB0_2
s_branch .LBB0_4
.LBB0_3:
v_mov_b32_e32 v3, 0
v_mov_b32_e32 v2, 0
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v0, 0
.LBB0_4:
v_lshlrev_b32_e32 v4, 2, v4
s_waitcnt vmcnt(0)
global_store_dwordx4 v4, v[0:3], s[6:7]
s_endpgm
