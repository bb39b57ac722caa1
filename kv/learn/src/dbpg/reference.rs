//! ref
use super::blocks::*;
use super::gradient::*;
use super::proximal::*;
use super::schedule::*;
use std::collections::VecDeque;

pub struct Lcg(u64);
impl Lcg { fn next(&mut self)->u64{ self.0=self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); self.0>>33 } }

pub fn tiny() -> (Vec<f64>, Vec<u64>, Vec<usize>, Vec<u32>) {
    let mut l=Lcg(1);
    let p=60;
    let mut cols=vec![vec![];60];
    let mut labels=vec![];
    for i in 0..200u32 {
        let mut r:Vec<u64>=(0..6).map(|_| l.next()%p).collect(); r.sort(); r.dedup();
        let t:f64=r.iter().map(|j| match j%10 {5=>1.5,0=>-1.5,_=>0.0}).sum();
        let e=(l.next()%1000) as f64/1000.0-0.5;
        labels.push(if t+e>0.0 {1.0} else {-1.0});
        for &j in &r { cols[j as usize].push(i); }
    }
    let mut starts=vec![0]; let mut rows=vec![];
    for c in &cols { rows.extend(c); starts.push(rows.len()); }
    (labels,(0..60).collect(),starts,rows)
}

#[derive(Clone,Copy,Debug)]
pub struct V { drain_eval: bool, drain_pass: bool, count_eval: bool }

pub fn run(c:&Columns, labels:&[f64], nb:usize, tau:u64, eta:f64, eps:f64, rule:Curvature, v:V, print:bool, maxp:usize, lambda:f64, thr0:Option<f64>, ratio:f64, order:Order, target:f64)->(usize,f64,usize) {
    let trust=TrustRegion::default();
    let mut s=Shard::new(Proximal{lambda,learning_rate:eta,trust});
    s.insert_keys(c.keys);
    let mut w=Worker::new(labels.to_vec(),c.keys.len(),trust);
    let blocks=even_blocks(c.keys[0],*c.keys.last().unwrap(),nb);
    let mut pend:VecDeque<(u64,std::ops::Range<usize>,Vec<f64>,Vec<bool>)>=VecDeque::new();
    let mut task=0u64; let mut stop=StopRule::new(eps); let mut st=Stop::Continue; let mut viol=None; let mut cols=0;
    let mut f=0.0;
    for pass in 0..maxp {
        let reset=st==Stop::Reset;
        if reset { w.reset_filter(); }
        s.begin_pass(reset);
        let thr=thr0.unwrap_or(kkt_threshold(viol,labels.len() as u64,ratio));
        for b in order.of_pass(pass as u64,blocks.len()) {
            task+=1;
            while pend.front().is_some_and(|p| p.0+tau<task) { let p=pend.pop_front().unwrap(); w.apply(c,p.1,&p.2,&p.3); }
            let r=s.locate(&blocks[b]);
            let mut g=vec![0.0;r.len()]; let mut u=g.clone();
            cols+=w.gradient(c,r.clone(),rule,&mut g,&mut u);
            let mut sum=BlockSum::new(r.len());
            sum.add(&(0..r.len()).collect::<Vec<_>>(),&g,&u,&w.active()[r.clone()]);
            s.update(r.clone(),&sum,thr);
            pend.push_back((task,r.clone(),s.weights()[r.clone()].to_vec(),s.active()[r].to_vec()));
        }
        if v.count_eval { task+=1; while pend.front().is_some_and(|p| p.0+tau<task) { let p=pend.pop_front().unwrap(); w.apply(c,p.1,&p.2,&p.3); } }
        if v.drain_pass { while let Some(p)=pend.pop_front() { w.apply(c,p.1,&p.2,&p.3); } }
        let loss=if v.drain_eval { let mut w2=w.clone(); for p in &pend { w2.apply(c,p.1.clone(),&p.2,&p.3); } w2.loss() } else { w.loss() };
        f=loss+lambda*s.weight_norm();
        viol=Some(s.violation());
        let (rel,x)=stop.after_pass(f); st=x;
        if print { println!("{pass} F={f} rel={rel:e} nnz={} thr={thr} act={} viol={} cols={cols} {st:?}",s.nonzeros(),s.active_count(),s.violation()); }
        if st==Stop::Done || f<=target { return (pass+1,f,s.nonzeros()); }
    }
    (0,f,s.nonzeros())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn explore() {
        let (l,k,s,r)=tiny();
        println!("{}", l.iter().filter(|&&y|y>0.0).count());
        let c=Columns{keys:&k,starts:&s,rows:&r,values:None};
        let v=V{drain_eval:true,drain_pass:false,count_eval:false};
        let none=f64::NEG_INFINITY;
        run(&c,&l,6,0,1.0,1e-6,Curvature::Published,v,true,300,1.0,None,10.0,Order::Key,none);
        run(&c,&l,6,0,1.0,1e-6,Curvature::Published,v,true,300,1.0,None,f64::INFINITY,Order::Key,none);
        run(&c,&l,6,0,1.0,1e-4,Curvature::Published,v,true,300,1.0,Some(0.0),10.0,Order::Key,none);
        run(&c,&l,6,0,1.0,1e-6,Curvature::Safe,v,true,300,1.0,None,10.0,Order::Key,none);
        for de in [true,false] { for dp in [false,true] { for ce in [false,true] {
            let v=V{drain_eval:de,drain_pass:dp,count_eval:ce};
            println!("{v:?}");
            for nb in [6,12,30,60] { for eta in [1.0,0.7,0.5,0.3] {
                let x:Vec<_>=[0,1,2,4,8].iter().map(|&t| run(&c,&l,nb,t,eta,1e-6,Curvature::Published,v,false,300,1.0,None,10.0,Order::Key,none).0).collect();
                print!("{x:?} | ");
            } println!(); }
        }}}
    }
}
