; LLVM 22.1.0
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_load_dwordx2 s[2:3], s[0:1], 0x10
v_and_b32_e32 v4, 15, v0
v_lshrrev_b32_e32 v5, 4, v0
v_lshlrev_b32_e32 v0, 5, v4
v_mov_b32_e32 v1, 0
s_waitcnt lgkmcnt(0)
v_lshl_add_u64 v[2:3], s[4:5], 0, v[0:1]
v_lshlrev_b32_e32 v0, 3, v5
v_lshl_add_u64 v[2:3], v[2:3], 0, v[0:1]
global_load_dwordx2 v[10:11], v[2:3], off
v_lshlrev_b32_e32 v0, 7, v5
v_lshl_add_u64 v[2:3], s[6:7], 0, v[0:1]
v_lshlrev_b32_e32 v0, 1, v4
v_lshl_add_u64 v[2:3], v[2:3], 0, v[0:1]
global_load_ushort v6, v[2:3], off
global_load_ushort v7, v[2:3], off offset:64
global_load_ushort v8, v[2:3], off offset:96
global_load_ushort v9, v[2:3], off offset:32
v_lshlrev_b32_e32 v0, 8, v5
s_mov_b32 s0, 0x5040100
v_lshl_add_u64 v[2:3], s[2:3], 0, v[0:1]
v_lshlrev_b32_e32 v0, 2, v4
v_lshl_add_u64 v[4:5], v[2:3], 0, v[0:1]
s_waitcnt vmcnt(1)
v_perm_b32 v1, v8, v7, s0
s_waitcnt vmcnt(0)
v_perm_b32 v0, v9, v6, s0
s_nop 1
v_mfma_f32_16x16x16_f16 v[0:3], v[10:11], v[0:1], 0
s_nop 6
global_store_dword v[4:5], v0, off
global_store_dword v[4:5], v1, off offset:64
global_store_dword v[4:5], v2, off offset:128
global_store_dword v[4:5], v3, off offset:192
s_endpgm
