; ModuleID = "microkernel_f64_2x8_rows_masked"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"microkernel_f64_2x8_rows_masked"(i64 %"kc", ptr noalias %"a", i64 %"lda", ptr noalias %"b", i64 %"ldb", ptr noalias %"c", i64 %"ldc", i64 %"cols", double %"alpha", double %"beta", ptr noalias %"ahead", i64 %"ahead_step") "min-legal-vector-width"="512" "no-builtins" "prefer-vector-width"="512" nounwind
{
entry:
  %"reg" = alloca <4 x double>
  %"reg.1" = alloca <4 x double>
  %"reg.2" = alloca <4 x double>
  %"reg.3" = alloca <4 x double>
  br label %"body"
body:
  %"mul" = mul i64 %"lda", 0
  %"at" = getelementptr double, ptr %"a", i64 %"mul"
  %".15" = call ptr asm  "", "=r,0"(ptr %"at")
  %".16" = call i64 asm  "", "=r,0"(i64 %"lda")
  %"mul.1" = mul i64 %"lda", 3
  %".17" = call i64 asm  "", "=r,0"(i64 %"mul.1")
  %"mul.2" = mul i64 %".16", 2
  %"sub" = sub i64 %"cols", 0
  %".18" = trunc i64 %"sub" to i32
  %".19" = insertelement <4 x i32> <i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".18", i32 0
  %"splat" = shufflevector <4 x i32> %".19", <4 x i32> <i32 undef, i32 undef, i32 undef, i32 undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mask" = icmp sgt <4 x i32> %"splat", <i32 0, i32 1, i32 2, i32 3>
  %"sub.1" = sub i64 %"cols", 4
  %".20" = trunc i64 %"sub.1" to i32
  %".21" = insertelement <4 x i32> <i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".20", i32 0
  %"splat.1" = shufflevector <4 x i32> %".21", <4 x i32> <i32 undef, i32 undef, i32 undef, i32 undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mask.1" = icmp sgt <4 x i32> %"splat.1", <i32 0, i32 1, i32 2, i32 3>
  store <4 x double> <double              0x0, double              0x0, double              0x0, double              0x0>, <4 x double>* %"reg"
  store <4 x double> <double              0x0, double              0x0, double              0x0, double              0x0>, <4 x double>* %"reg.1"
  store <4 x double> <double              0x0, double              0x0, double              0x0, double              0x0>, <4 x double>* %"reg.2"
  store <4 x double> <double              0x0, double              0x0, double              0x0, double              0x0>, <4 x double>* %"reg.3"
  %".26" = icmp slt i64 0, %"kc"
  br i1 %".26", label %"loop", label %"done"
loop:
  %"index" = phi  i64 [0, %"body"], [%"next", %"loop"]
  %"mul.3" = mul i64 %"index", %"ldb"
  %"at.1" = getelementptr double, ptr %"b", i64 %"mul.3"
  %"at.2" = getelementptr double, ptr %"at.1", i64 8
  call void @"llvm.prefetch.p0"(ptr %"at.2", i32 0, i32 3, i32 1)
  %"mul.4" = mul i64 %"index", %"ahead_step"
  %"at.3" = getelementptr double, ptr %"ahead", i64 %"mul.4"
  call void @"llvm.prefetch.p0"(ptr %"at.3", i32 0, i32 2, i32 1)
  %"load" = call <4 x double> @"llvm.masked.load.v4f64.p0"(ptr %"at.1", i32 8, <4 x i1> %"mask", <4 x double> <double 0.0, double 0.0, double 0.0, double 0.0>)
  %"at.4" = getelementptr double, ptr %"at.1", i64 4
  %"load.1" = call <4 x double> @"llvm.masked.load.v4f64.p0"(ptr %"at.4", i32 8, <4 x i1> %"mask.1", <4 x double> <double 0.0, double 0.0, double 0.0, double 0.0>)
  %"at.5" = getelementptr double, ptr %".15", i64 %"index"
  %"load.2" = load double, ptr %"at.5", align 8
  %".30" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"load.2", i32 0
  %"splat.2" = shufflevector <4 x double> %".30", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"read" = load <4 x double>, <4 x double>* %"reg"
  %"fma" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.2", <4 x double> %"load", <4 x double> %"read")
  store <4 x double> %"fma", <4 x double>* %"reg"
  %"read.1" = load <4 x double>, <4 x double>* %"reg.1"
  %"fma.1" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.2", <4 x double> %"load.1", <4 x double> %"read.1")
  store <4 x double> %"fma.1", <4 x double>* %"reg.1"
  %"at.6" = getelementptr double, ptr %".15", i64 %".16"
  %"at.7" = getelementptr double, ptr %"at.6", i64 %"index"
  %"load.3" = load double, ptr %"at.7", align 8
  %".33" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"load.3", i32 0
  %"splat.3" = shufflevector <4 x double> %".33", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"read.2" = load <4 x double>, <4 x double>* %"reg.2"
  %"fma.2" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.3", <4 x double> %"load", <4 x double> %"read.2")
  store <4 x double> %"fma.2", <4 x double>* %"reg.2"
  %"read.3" = load <4 x double>, <4 x double>* %"reg.3"
  %"fma.3" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.3", <4 x double> %"load.1", <4 x double> %"read.3")
  store <4 x double> %"fma.3", <4 x double>* %"reg.3"
  %"next" = add nsw i64 %"index", 1
  %".36" = icmp slt i64 %"next", %"kc"
  br i1 %".36", label %"loop", label %"done"
done:
  %"ne" = fcmp une double %"alpha", 0x3ff0000000000000
  br i1 %"ne", label %"then", label %"end"
then:
  %"read.4" = load <4 x double>, <4 x double>* %"reg"
  %".39" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"alpha", i32 0
  %"splat.4" = shufflevector <4 x double> %".39", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mul.5" = fmul <4 x double> %"read.4", %"splat.4"
  store <4 x double> %"mul.5", <4 x double>* %"reg"
  %"read.5" = load <4 x double>, <4 x double>* %"reg.1"
  %".41" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"alpha", i32 0
  %"splat.5" = shufflevector <4 x double> %".41", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mul.6" = fmul <4 x double> %"read.5", %"splat.5"
  store <4 x double> %"mul.6", <4 x double>* %"reg.1"
  %"read.6" = load <4 x double>, <4 x double>* %"reg.2"
  %".43" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"alpha", i32 0
  %"splat.6" = shufflevector <4 x double> %".43", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mul.7" = fmul <4 x double> %"read.6", %"splat.6"
  store <4 x double> %"mul.7", <4 x double>* %"reg.2"
  %"read.7" = load <4 x double>, <4 x double>* %"reg.3"
  %".45" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"alpha", i32 0
  %"splat.7" = shufflevector <4 x double> %".45", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"mul.8" = fmul <4 x double> %"read.7", %"splat.7"
  store <4 x double> %"mul.8", <4 x double>* %"reg.3"
  br label %"end"
end:
  %"eq" = icmp eq i64 %"cols", 8
  br i1 %"eq", label %"then.1", label %"else"
then.1:
  %"eq.1" = fcmp oeq double %"beta",              0x0
  br i1 %"eq.1", label %"then.2", label %"else.1"
end.1:
  ret void
else:
  %"eq.2" = fcmp oeq double %"beta",              0x0
  br i1 %"eq.2", label %"then.3", label %"else.2"
then.2:
  %"mul.9" = mul i64 %"ldc", 0
  %"at.8" = getelementptr double, ptr %"c", i64 %"mul.9"
  %"read.8" = load <4 x double>, <4 x double>* %"reg"
  store <4 x double> %"read.8", ptr %"at.8", align 8
  %"mul.10" = mul i64 %"ldc", 0
  %"at.9" = getelementptr double, ptr %"c", i64 %"mul.10"
  %"at.10" = getelementptr double, ptr %"at.9", i64 4
  %"read.9" = load <4 x double>, <4 x double>* %"reg.1"
  store <4 x double> %"read.9", ptr %"at.10", align 8
  %"at.11" = getelementptr double, ptr %"c", i64 %"ldc"
  %"read.10" = load <4 x double>, <4 x double>* %"reg.2"
  store <4 x double> %"read.10", ptr %"at.11", align 8
  %"at.12" = getelementptr double, ptr %"c", i64 %"ldc"
  %"at.13" = getelementptr double, ptr %"at.12", i64 4
  %"read.11" = load <4 x double>, <4 x double>* %"reg.3"
  store <4 x double> %"read.11", ptr %"at.13", align 8
  br label %"end.2"
end.2:
  br label %"end.1"
else.1:
  %"mul.11" = mul i64 %"ldc", 0
  %"at.14" = getelementptr double, ptr %"c", i64 %"mul.11"
  %"read.12" = load <4 x double>, <4 x double>* %"reg"
  %".55" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"beta", i32 0
  %"splat.8" = shufflevector <4 x double> %".55", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.4" = load <4 x double>, ptr %"at.14", align 8
  %"fma.4" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.8", <4 x double> %"load.4", <4 x double> %"read.12")
  store <4 x double> %"fma.4", ptr %"at.14", align 8
  %"mul.12" = mul i64 %"ldc", 0
  %"at.15" = getelementptr double, ptr %"c", i64 %"mul.12"
  %"at.16" = getelementptr double, ptr %"at.15", i64 4
  %"read.13" = load <4 x double>, <4 x double>* %"reg.1"
  %".57" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"beta", i32 0
  %"splat.9" = shufflevector <4 x double> %".57", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.5" = load <4 x double>, ptr %"at.16", align 8
  %"fma.5" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.9", <4 x double> %"load.5", <4 x double> %"read.13")
  store <4 x double> %"fma.5", ptr %"at.16", align 8
  %"at.17" = getelementptr double, ptr %"c", i64 %"ldc"
  %"read.14" = load <4 x double>, <4 x double>* %"reg.2"
  %".59" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"beta", i32 0
  %"splat.10" = shufflevector <4 x double> %".59", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.6" = load <4 x double>, ptr %"at.17", align 8
  %"fma.6" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.10", <4 x double> %"load.6", <4 x double> %"read.14")
  store <4 x double> %"fma.6", ptr %"at.17", align 8
  %"at.18" = getelementptr double, ptr %"c", i64 %"ldc"
  %"at.19" = getelementptr double, ptr %"at.18", i64 4
  %"read.15" = load <4 x double>, <4 x double>* %"reg.3"
  %".61" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"beta", i32 0
  %"splat.11" = shufflevector <4 x double> %".61", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.7" = load <4 x double>, ptr %"at.19", align 8
  %"fma.7" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.11", <4 x double> %"load.7", <4 x double> %"read.15")
  store <4 x double> %"fma.7", ptr %"at.19", align 8
  br label %"end.2"
then.3:
  %"mul.13" = mul i64 %"ldc", 0
  %"at.20" = getelementptr double, ptr %"c", i64 %"mul.13"
  %"read.16" = load <4 x double>, <4 x double>* %"reg"
  call void @"llvm.masked.store.v4f64.p0"(<4 x double> %"read.16", ptr %"at.20", i32 8, <4 x i1> %"mask")
  %"mul.14" = mul i64 %"ldc", 0
  %"at.21" = getelementptr double, ptr %"c", i64 %"mul.14"
  %"at.22" = getelementptr double, ptr %"at.21", i64 4
  %"read.17" = load <4 x double>, <4 x double>* %"reg.1"
  call void @"llvm.masked.store.v4f64.p0"(<4 x double> %"read.17", ptr %"at.22", i32 8, <4 x i1> %"mask.1")
  %"at.23" = getelementptr double, ptr %"c", i64 %"ldc"
  %"read.18" = load <4 x double>, <4 x double>* %"reg.2"
  call void @"llvm.masked.store.v4f64.p0"(<4 x double> %"read.18", ptr %"at.23", i32 8, <4 x i1> %"mask")
  %"at.24" = getelementptr double, ptr %"c", i64 %"ldc"
  %"at.25" = getelementptr double, ptr %"at.24", i64 4
  %"read.19" = load <4 x double>, <4 x double>* %"reg.3"
  call void @"llvm.masked.store.v4f64.p0"(<4 x double> %"read.19", ptr %"at.25", i32 8, <4 x i1> %"mask.1")
  br label %"end.3"
end.3:
  br label %"end.1"
else.2:
  %"mul.15" = mul i64 %"ldc", 0
  %"at.26" = getelementptr double, ptr %"c", i64 %"mul.15"
  %"read.20" = load <4 x double>, <4 x double>* %"reg"
  %".71" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"beta", i32 0
  %"splat.12" = shufflevector <4 x double> %".71", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.8" = call <4 x double> @"llvm.masked.load.v4f64.p0"(ptr %"at.26", i32 8, <4 x i1> %"mask", <4 x double> <double 0.0, double 0.0, double 0.0, double 0.0>)
  %"fma.8" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.12", <4 x double> %"load.8", <4 x double> %"read.20")
  call void @"llvm.masked.store.v4f64.p0"(<4 x double> %"fma.8", ptr %"at.26", i32 8, <4 x i1> %"mask")
  %"mul.16" = mul i64 %"ldc", 0
  %"at.27" = getelementptr double, ptr %"c", i64 %"mul.16"
  %"at.28" = getelementptr double, ptr %"at.27", i64 4
  %"read.21" = load <4 x double>, <4 x double>* %"reg.1"
  %".73" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"beta", i32 0
  %"splat.13" = shufflevector <4 x double> %".73", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.9" = call <4 x double> @"llvm.masked.load.v4f64.p0"(ptr %"at.28", i32 8, <4 x i1> %"mask.1", <4 x double> <double 0.0, double 0.0, double 0.0, double 0.0>)
  %"fma.9" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.13", <4 x double> %"load.9", <4 x double> %"read.21")
  call void @"llvm.masked.store.v4f64.p0"(<4 x double> %"fma.9", ptr %"at.28", i32 8, <4 x i1> %"mask.1")
  %"at.29" = getelementptr double, ptr %"c", i64 %"ldc"
  %"read.22" = load <4 x double>, <4 x double>* %"reg.2"
  %".75" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"beta", i32 0
  %"splat.14" = shufflevector <4 x double> %".75", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.10" = call <4 x double> @"llvm.masked.load.v4f64.p0"(ptr %"at.29", i32 8, <4 x i1> %"mask", <4 x double> <double 0.0, double 0.0, double 0.0, double 0.0>)
  %"fma.10" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.14", <4 x double> %"load.10", <4 x double> %"read.22")
  call void @"llvm.masked.store.v4f64.p0"(<4 x double> %"fma.10", ptr %"at.29", i32 8, <4 x i1> %"mask")
  %"at.30" = getelementptr double, ptr %"c", i64 %"ldc"
  %"at.31" = getelementptr double, ptr %"at.30", i64 4
  %"read.23" = load <4 x double>, <4 x double>* %"reg.3"
  %".77" = insertelement <4 x double> <double undef, double undef, double undef, double undef>, double %"beta", i32 0
  %"splat.15" = shufflevector <4 x double> %".77", <4 x double> <double undef, double undef, double undef, double undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %"load.11" = call <4 x double> @"llvm.masked.load.v4f64.p0"(ptr %"at.31", i32 8, <4 x i1> %"mask.1", <4 x double> <double 0.0, double 0.0, double 0.0, double 0.0>)
  %"fma.11" = call <4 x double> @"llvm.fma.v4f64"(<4 x double> %"splat.15", <4 x double> %"load.11", <4 x double> %"read.23")
  call void @"llvm.masked.store.v4f64.p0"(<4 x double> %"fma.11", ptr %"at.31", i32 8, <4 x i1> %"mask.1")
  br label %"end.3"
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

declare <4 x double> @"llvm.masked.load.v4f64.p0"(ptr %".1", i32 %".2", <4 x i1> %".3", <4 x double> %".4")

declare <4 x double> @"llvm.fma.v4f64"(<4 x double> %".1", <4 x double> %".2", <4 x double> %".3")

declare void @"llvm.masked.store.v4f64.p0"(<4 x double> %".1", ptr %".2", i32 %".3", <4 x i1> %".4")
